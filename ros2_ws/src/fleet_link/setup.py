from setuptools import find_packages, setup

package_name = 'fleet_link'

setup(
    name=package_name,
    version='0.5.0',
    packages=find_packages(exclude=['test']),
    data_files=[
        ('share/ament_index/resource_index/packages', ['resource/' + package_name]),
        ('share/' + package_name, ['package.xml']),
    ],
    install_requires=['cryptography'],
    extras_require={'test': ['pytest', 'hypothesis']},
    zip_safe=True,
    maintainer='The ROG founders',
    maintainer_email='rog@example.org',
    description='The one link of the suite, without any I/O: what is sent, lost and repeated.',
    license='Apache-2.0',
)
