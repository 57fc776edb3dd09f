"""Which operators a server computes: tests walk every schema that this PyTorch has."""

import pytest
import torch
from fleet_compute.operators import NAMESPACES, find, refusal


def overloads():
    for schema in torch._C._jit_get_all_schemas():
        space, _, name = schema.name.partition('::')
        packet = getattr(getattr(torch.ops, space, None), name, None)
        which = schema.overload_name or 'default'
        if isinstance(packet, torch._ops.OpOverloadPacket) and which in packet.overloads():
            yield getattr(packet, which)


OVERLOADS = list(overloads())
COMPUTED = [overload for overload in OVERLOADS if not refusal(overload)]


def test_every_computed_operator_is_a_pure_function_of_tensors_and_plain_values():
    assert 1000 < len(COMPUTED) < len(OVERLOADS)
    for overload in COMPUTED:
        schema = overload._schema
        assert schema.name.partition('::')[0] in NAMESPACES and not schema.is_mutable
        assert not any(a.alias_info and a.alias_info.is_write for a in schema.arguments)
        assert not any(word in str(a.type) for a in schema.arguments
                       for word in ('Stream', 'Storage', 'Any', 'Dict', 'Future', 'Graph'))
        assert all(str(r.type) in ('Tensor', 'List[Tensor]') for r in schema.returns)


@pytest.mark.parametrize('word', ['file', 'load', 'save', 'storage', 'address', 'pointer', '_ptr'])
def test_no_computed_operator_speaks_of_files_code_or_addresses(word):
    assert not [o for o in COMPUTED if word in o._schema.name]


@pytest.mark.parametrize('name', ['aten.from_file.default', 'aten.empty.memory_format',
                                  'aten.new_empty.default', 'aten.relu_.default',
                                  'aten.nonzero.default', 'aten._reshape_alias.default',
                                  'aten.item.default', 'aten.resize.default',
                                  'aten.segment_reduce.default'])
def test_what_a_server_never_computes(name):
    assert refusal(find(name))


@pytest.mark.parametrize('name', ['aten.relu.default', 'aten.linalg_inv.default',
                                  'aten.sort.stable', 'aten.special_erfcx.default',
                                  'aten.grid_sampler_3d.default',
                                  'aten.one_hot.default', 'aten.searchsorted.Tensor',
                                  'prims.convert_element_type.default'])
def test_what_a_server_computes(name):
    assert refusal(find(name)) == ''



@pytest.mark.parametrize('name', ['', 'relu', 'aten.relu', 'aten.no_such.default', 'os.system.x',
                                  'aten.relu.no_such', 'aten.__class__.default', 'a.b.c.d'])
def test_a_name_that_is_no_operator_is_refused(name):
    with pytest.raises(LookupError, match='has no operator'):
        find(name)
