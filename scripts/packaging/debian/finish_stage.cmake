# Adds what Debian requires of a package beyond `cmake --install`: a copyright file and a changelog,
# compressed man pages, and archives without debug information. CPack runs this after the
# installation into its staging folder and before it makes the packages.
find_program(CPACK_FILETIMER_SHLIBDEPS dpkg-shlibdeps)
if(NOT CPACK_FILETIMER_SHLIBDEPS)
  message(FATAL_ERROR "no dpkg-shlibdeps here, without which the packages would depend on nothing: "
                      "`scripts/install-deps package` installs it")
endif()
foreach(component ${CPACK_COMPONENTS_ALL})
  string(TOUPPER ${component} name)
  set(package ${CPACK_DEBIAN_${name}_PACKAGE_NAME})
  set(usr ${CPACK_TEMPORARY_DIRECTORY}/${component}/usr)

  set(doc ${usr}/share/doc/${package})
  file(READ ${CPACK_FILETIMER_LICENSE} license)
  string(REGEX REPLACE "\n$" "" license "${license}")
  string(REGEX REPLACE "\n\n" "\n.\n" license "${license}")
  string(REPLACE "\n" "\n " license "${license}")
  configure_file(${CPACK_FILETIMER_FILES}/copyright.in ${doc}/copyright @ONLY)
  string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)  # $SOURCE_DATE_EPOCH, if it is set
  configure_file(${CPACK_FILETIMER_FILES}/changelog.in ${doc}/changelog @ONLY)

  set(helper usr/libexec/filetimer/filetimer-stacks)
  if(EXISTS ${CPACK_TEMPORARY_DIRECTORY}/${component}/${helper})
    file(WRITE ${usr}/share/lintian/overrides/${package}
      "# A dynamic linker would take most of the helper's time.\n"
      "${package}: statically-linked-binary [${helper}]\n")
  endif()

  file(GLOB_RECURSE pages ${usr}/share/man/*.[1-9])
  execute_process(COMMAND gzip -9 -n -f ${doc}/changelog ${pages}
    COMMAND_ERROR_IS_FATAL ANY)
  file(GLOB_RECURSE archives ${usr}/lib/*.a)
  if(archives)
    execute_process(COMMAND ${CPACK_FILETIMER_STRIP} --strip-debug ${archives}
      COMMAND_ERROR_IS_FATAL ANY)
  endif()
  # What was written here has permissions of the caller's umask.
  execute_process(COMMAND chmod -R u=rwX,go=rX ${CPACK_TEMPORARY_DIRECTORY}/${component}
    COMMAND_ERROR_IS_FATAL ANY)
endforeach()
