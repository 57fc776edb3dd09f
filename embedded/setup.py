"""Build step: the definitions of rog_msgs travel in the wheel; they are not kept here twice."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SOURCE = Path(__file__).resolve().parent.parent / "ros2_ws" / "src" / "rog_msgs"


class BuildWithDefinitions(build_py):
    """Copies .msg and .srv files next to the package; an editable install reads the checkout."""

    def run(self):
        super().run()
        if self.editable_mode:
            return
        definitions = [*SOURCE.glob("msg/*.msg"), *SOURCE.glob("srv/*.srv")]
        if not definitions:
            raise FileNotFoundError(f"no message definitions in {SOURCE}: build from a checkout")
        for path in definitions:
            target = Path(self.build_lib) / "rog_msgs" / path.parent.name / path.name
            self.mkpath(str(target.parent))
            self.copy_file(str(path), str(target))


setup(cmdclass={"build_py": BuildWithDefinitions})
