from setuptools import find_packages, setup

package_name = 'rog_methods_local'

setup(
    name=package_name,
    version='0.5.0',
    packages=find_packages(exclude=['test']),
    data_files=[
        ('share/ament_index/resource_index/packages', ['resource/' + package_name]),
        ('share/' + package_name, ['package.xml']),
    ],
    install_requires=['numba', 'numpy', 'typing_extensions>=4.4'],
    extras_require={'test': ['pytest', 'hypothesis']},
    zip_safe=False,
    maintainer='The ROG founders',
    maintainer_email='rog@example.org',
    description='Plug-ins of ROG: methods with local steps, their codecs, a trimmed mean.',
    license='Apache-2.0',
    entry_points={
        'rog.methods': [
            'local = rog_methods_local.local:LocalSgd',
            'diloco = rog_methods_local.diloco:DiLoCo',
            'trimmed = rog_methods_local.trimmed:Trimmed',
        ],
        'rog.codecs': [
            'e3m0 = rog_methods_local.e3m0:E3M0',
            'sparseloco = rog_methods_local.sparseloco:SparseLoCo',
        ],
    },
)
