from setuptools import find_packages, setup

package_name = 'rog_studies'

setup(
    name=package_name,
    version='0.5.0',
    packages=find_packages(exclude=['test']),
    data_files=[
        ('share/ament_index/resource_index/packages', ['resource/' + package_name]),
        ('share/' + package_name, ['package.xml']),
    ],
    install_requires=['numpy', 'torch>=2.4', 'matplotlib', 'rich', 'safetensors', 'scipy',
                      'typing_extensions>=4.4'],
    extras_require={'test': ['pytest', 'hypothesis']},
    zip_safe=True,
    maintainer='The ROG founders',
    maintainer_email='rog@example.org',
    description='What papers measured, measured again in virtual time; not installed on robots.',
    license='Apache-2.0',
    entry_points={
        'rog.verbs': [
            'study = rog_studies.verbs.study:add_to',
            'calibrate = rog_studies.verbs.calibrate:add_to',
        ],
        'lopinfer.profiles': ['csv = rog_studies.lopinfer_published:load'],
    },
)
