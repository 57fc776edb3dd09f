"""Build step: the definitions of our packages travel in the wheel; they are not kept here twice."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SOURCES = Path(__file__).resolve().parent.parent / "ros2_ws" / "src"
PACKAGES = ("rog_msgs", "lopinfer_msgs", "rrto_msgs")


class BuildWithDefinitions(build_py):
    """Copies .msg and .srv files next to the packages; an editable install reads the checkout."""

    def run(self):
        super().run()
        if self.editable_mode:
            return
        for package in PACKAGES:
            source = SOURCES / package
            definitions = [*source.glob("msg/*.msg"), *source.glob("srv/*.srv")]
            if not definitions:
                raise FileNotFoundError(f"no definitions in {source}: build from a checkout")
            for path in definitions:
                target = Path(self.build_lib) / package / path.parent.name / path.name
                self.mkpath(str(target.parent))
                self.copy_file(str(path), str(target))


setup(cmdclass={"build_py": BuildWithDefinitions})
