# SPDX-License-Identifier: MIT
"""Compiles filetimer._native with the C++ client that it holds, as CMake does for the build folder.
The rest is in pyproject.toml. Needs g++ 11 or later and Debian's libfmt-dev, libsimdjson-dev,
libexpected-dev and libboost-dev.
"""
import glob
import multiprocessing.pool
import os

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext


class ParallelBuild(build_ext):
    """Compiles the files of the extension side by side, which distutils does not."""

    def build_extension(self, ext):
        compile_one = self.compiler.compile

        def compile_all(sources, **options):
            with multiprocessing.pool.ThreadPool(len(os.sched_getaffinity(0))) as pool:
                objects = pool.map(lambda source: compile_one([source], **options), sources)
            return [each for one in objects for each in one]
        self.compiler.compile = compile_all
        super().build_extension(ext)


setup(
    cmdclass={"build_ext": ParallelBuild},
    ext_modules=[Extension(
        "filetimer._native",
        sources=sorted(glob.glob("common/*.cpp") + glob.glob("timer_client/src/*.cpp")
                       + glob.glob("timer_client/python/native/*.cpp")),
        include_dirs=[".", "timer_client/include"],
        libraries=["fmt", "simdjson"],
        # Without debug information, which Python's own flags ask for: it is ten times the code.
        extra_compile_args=["-std=c++20", "-O2", "-g0", "-fvisibility=hidden"],
        language="c++")])
