# The Debian packages: `cmake --preset package && cmake --build --preset package` leaves them in
# build/package. finish_stage.cmake adds what Debian requires beyond an installation.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME filetimer)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "The filetimer authors <noreply@filetimer.invalid>")
set(CPACK_PACKAGE_VENDOR "The filetimer authors")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "watchdog for distributed training jobs")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS
  OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_CURRENT_LIST_DIR}/finish_stage.cmake)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_PRIORITY optional)
set(CPACK_DEBIAN_PACKAGE_SOURCE filetimer)

set(CPACK_COMPONENTS_ALL server client dev doc)

set(CPACK_DEBIAN_SERVER_PACKAGE_NAME filetimer-server)
set(CPACK_DEBIAN_SERVER_PACKAGE_SECTION admin)
set(CPACK_DEBIAN_SERVER_PACKAGE_RECOMMENDS filetimer-client)
set(CPACK_DEBIAN_SERVER_PACKAGE_SUGGESTS filetimer-doc)
set(CPACK_DEBIAN_SERVER_PACKAGE_CONTROL_EXTRA
  ${CMAKE_CURRENT_LIST_DIR}/filetimer-server/postinst
  ${CMAKE_CURRENT_LIST_DIR}/filetimer-server/prerm
  ${CMAKE_CURRENT_LIST_DIR}/filetimer-server/postrm)
set(CPACK_COMPONENT_SERVER_DESCRIPTION
"This package has the server. It kills the worker of a training job whose timer
scope is still open at its deadline, and records where the worker hung and which
workers waited for it. One server serves a host, or a job on it. It also reads
the timer requests of PyTorch Distributed Elastic.")

set(CPACK_DEBIAN_CLIENT_PACKAGE_NAME filetimer-client)
set(CPACK_DEBIAN_CLIENT_PACKAGE_SECTION admin)
set(CPACK_DEBIAN_CLIENT_PACKAGE_RECOMMENDS filetimer-server)
set(CPACK_DEBIAN_CLIENT_PACKAGE_SUGGESTS filetimer-doc)
set(CPACK_COMPONENT_CLIENT_DESCRIPTION
"This package has the command line: timer_client runs a command under a
deadline, lists open scopes, shows what was killed and why, and controls the
server.")

set(CPACK_DEBIAN_DEV_PACKAGE_NAME libfiletimer-dev)
set(CPACK_DEBIAN_DEV_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEV_PACKAGE_DEPENDS "libsimdjson-dev")
set(CPACK_DEBIAN_DEV_PACKAGE_RECOMMENDS filetimer-server)
set(CPACK_DEBIAN_DEV_PACKAGE_SUGGESTS filetimer-doc)
set(CPACK_COMPONENT_DEV_DESCRIPTION
"This package has the C++ library. With it a C++20 worker opens scopes with
deadlines, which cost a look at the clock and a few stores in memory. It has
static libraries, headers, and files for CMake and pkg-config.")

set(CPACK_DEBIAN_DOC_PACKAGE_NAME filetimer-doc)
set(CPACK_DEBIAN_DOC_PACKAGE_SECTION doc)
set(CPACK_DEBIAN_DOC_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_DOC_PACKAGE_SHLIBDEPS OFF)
set(CPACK_COMPONENT_DOC_DESCRIPTION
"This package has the documentation and examples: how it works, the pipe and
the mapped files byte by byte, every event and field of the log, hooks, and a
trainer in PyTorch.")

if(FILETIMER_HAS_PYTHON)
  list(APPEND CPACK_COMPONENTS_ALL python)
  set(CPACK_DEBIAN_PYTHON_PACKAGE_NAME python3-filetimer)
  set(CPACK_DEBIAN_PYTHON_PACKAGE_SECTION python)
  set(CPACK_DEBIAN_PYTHON_PACKAGE_DEPENDS "python3 (>= 3.10)")
  set(CPACK_DEBIAN_PYTHON_PACKAGE_RECOMMENDS filetimer-server)
  set(CPACK_DEBIAN_PYTHON_PACKAGE_SUGGESTS "filetimer-doc, python3-torch")
  set(CPACK_DEBIAN_PYTHON_PACKAGE_CONTROL_EXTRA
    ${CMAKE_CURRENT_LIST_DIR}/python3-filetimer/postinst
    ${CMAKE_CURRENT_LIST_DIR}/python3-filetimer/prerm)
  set(CPACK_COMPONENT_PYTHON_DESCRIPTION
"This package is for Python workers: scopes with deadlines, as context managers
and decorators, and a timer client for
torch.distributed.elastic.")
endif()

# Variables for finish_stage.cmake, which runs in CPack.
set(CPACK_FILETIMER_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_FILETIMER_FILES ${CMAKE_CURRENT_LIST_DIR})
set(CPACK_FILETIMER_STRIP ${CMAKE_STRIP})
include(CPack)
