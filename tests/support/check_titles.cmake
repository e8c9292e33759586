# Fails the build if the title of a test case cannot be an entry of CTest. CMake splits lists at ';',
# so the halves of a title would match no case. Two cases with one title would both run twice.
# usage: cmake -D PROGRAM=TESTS [-D EMULATOR=COMMAND] -P check_titles.cmake
cmake_minimum_required(VERSION 3.25)
execute_process(COMMAND ${EMULATOR} ${PROGRAM} --list-test-cases
  OUTPUT_VARIABLE titles RESULT_VARIABLE failed)
if(failed)
  message(FATAL_ERROR "${PROGRAM} --list-test-cases: ${failed}")
endif()
string(REGEX MATCH "[^\n]*;[^\n]*" split "${titles}")
if(split)
  message(FATAL_ERROR "The title of a test case has a ';': ${split}")
endif()
# Brackets would keep the elements of a list together. The list is framed by "[doctest]" and "====".
string(REGEX REPLACE "[][]" "|" titles "${titles}")
string(REGEX REPLACE "\n" ";" titles "${titles}")
set(seen)
foreach(title IN LISTS titles)
  if(title IN_LIST seen AND NOT title MATCHES "^=+$")
    message(FATAL_ERROR "Two test cases have the same title: ${title}")
  endif()
  list(APPEND seen "${title}")
endforeach()
