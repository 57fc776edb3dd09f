from setuptools import find_packages, setup

package_name = 'fleet_env'

setup(
    name=package_name,
    version='0.5.0',
    packages=find_packages(exclude=['test']),
    data_files=[
        ('share/ament_index/resource_index/packages', ['resource/' + package_name]),
        ('share/' + package_name, ['package.xml']),
    ],
    install_requires=['numpy', 'pillow', 'pydantic>=2.5', 'PyYAML', 'safetensors', 'torch>=2.4'],
    extras_require={'pictures': ['matplotlib'], 'test': ['pytest', 'hypothesis', 'matplotlib']},
    zip_safe=True,
    maintainer='The ROG founders',
    maintainer_email='rog@example.org',
    description='What a fleet lives in: link traces, power, fleet files and run records.',
    license='Apache-2.0',
)
