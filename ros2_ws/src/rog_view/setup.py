from setuptools import find_packages, setup

package_name = 'rog_view'

setup(
    name=package_name,
    version='0.5.0',
    packages=find_packages(exclude=['test']),
    data_files=[
        ('share/ament_index/resource_index/packages', ['resource/' + package_name]),
        ('share/' + package_name, ['package.xml']),
        ('share/' + package_name + '/layouts', ['layouts/foxglove.json',
                                                'layouts/plotjuggler.xml']),
    ],
    install_requires=['nicegui>=3.0'],
    extras_require={'test': ['pytest', 'selenium']},
    zip_safe=True,
    maintainer='The ROG founders',
    maintainer_email='rog@example.org',
    description='A live fleet, a run or a recording in the browser; layouts for other viewers.',
    license='Apache-2.0',
    entry_points={'rog.verbs': ['view = rog_view.verb:add_to']},
)
