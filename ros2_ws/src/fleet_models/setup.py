from setuptools import find_packages, setup

package_name = 'fleet_models'

setup(
    name=package_name,
    version='0.5.0',
    packages=find_packages(exclude=['test']),
    data_files=[
        ('share/ament_index/resource_index/packages', ['resource/' + package_name]),
        ('share/' + package_name, ['package.xml']),
    ],
    install_requires=['torch>=2.4', 'safetensors'],
    extras_require={'test': ['pytest', 'hypothesis']},
    zip_safe=True,
    maintainer='The ROG founders',
    maintainer_email='rog@example.org',
    description='Versions of the model that a fleet learns: offered by its server, taken up by '
                'whoever uses the model.',
    license='Apache-2.0',
)
