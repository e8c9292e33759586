# SPDX-License-Identifier: MIT
"""Compiles filetimer._native with the C++ client that it holds, as CMake does for the build folder.
The rest is in pyproject.toml. Needs g++ 11 or later and Debian's libfmt-dev,
libexpected-dev, libtomlplusplus-dev and libboost-dev. The extension is for every Python from 3.10 on.

All C++ is found from the root of the clone, two folders up; a source distribution has it in cpp/.
"""
import glob
import multiprocessing.pool
import os
import shutil

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

HERE = os.path.dirname(os.path.abspath(__file__))
DISTRIBUTED = os.path.join(HERE, "cpp")
CPP = DISTRIBUTED if os.path.isdir(DISTRIBUTED) else os.path.dirname(os.path.dirname(HERE))
# Folders below CPP, with all that is below them.
LIBRARY = ("common", "timer_client/include", "timer_client/client")
NATIVE = ("timer_client/python/native",)
FILES_AT_ONCE = 13


def cpp_files(folders, ending):
    return sorted(file for folder in folders
                  for file in glob.glob(f"{CPP}/{folder}/**/*{ending}", recursive=True)
                  if not file.endswith("/wire_parser.cpp"))  # of the server; needs a JSON parser


class ParallelBuild(build_ext):
    """Compiles the files of the extension in parallel, which distutils does not. Compiles several
    files of the library as one, which takes half as long: most of the time goes into headers.
    """

    def combined(self, files):
        """Files that include FILES_AT_ONCE of `files` each."""
        os.makedirs(self.build_temp, exist_ok=True)
        for first in range(0, len(files), FILES_AT_ONCE):
            path = os.path.join(self.build_temp, f"combined_{first // FILES_AT_ONCE}.cpp")
            with open(path, "w", encoding="utf-8") as file:
                file.writelines(f'#include "{os.path.abspath(name)}"\n'
                                for name in files[first:first + FILES_AT_ONCE])
            yield path

    def build_extension(self, ext):
        compile_one = self.compiler.compile

        def compile_all(sources, **options):
            with multiprocessing.pool.ThreadPool(len(os.sched_getaffinity(0))) as pool:
                objects = pool.map(lambda source: compile_one([source], **options), sources)
            return [each for one in objects for each in one]
        self.compiler.compile = compile_all
        # Added here, because the sources of a distribution must be inside the package's folder.
        ext.sources += [*cpp_files(NATIVE, ".cpp"), *self.combined(cpp_files(LIBRARY, ".cpp"))]
        ext.include_dirs += [CPP, os.path.join(CPP, "timer_client/include")]
        super().build_extension(ext)


class CompleteSource(sdist):
    """A source distribution with the C++ client in it."""

    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        for file in cpp_files(LIBRARY + NATIVE, ".cpp") + cpp_files(LIBRARY + NATIVE, ".hpp"):
            copy = os.path.join(base_dir, "cpp", os.path.relpath(file, CPP))
            os.makedirs(os.path.dirname(copy), exist_ok=True)
            shutil.copy2(file, copy)
        if CPP != DISTRIBUTED:
            shutil.copy2(os.path.join(CPP, "LICENSE"), base_dir)


setup(
    cmdclass={"build_ext": ParallelBuild, "sdist": CompleteSource},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
    ext_modules=[Extension(
        "filetimer._native",
        sources=[],
        define_macros=[("Py_LIMITED_API", "0x030A0000"), ("FMT_HEADER_ONLY", None)],
        py_limited_api=True,
        # Python's own flags add debug information, which is ten times the code. Placed after
        # $CFLAGS, which may set another optimisation.
        extra_compile_args=["-std=c++20", "-g0", "-fvisibility=hidden",
                            *([] if "-O" in os.environ.get("CFLAGS", "") else ["-O2"])],
        language="c++")])
