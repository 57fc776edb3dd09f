"""Real programs whose authors did not know rrto; their models have random weights.

Each entry of CLIENTS builds a model on a device and returns its inference. The
inference is a function: its argument is the number of the inference, and it returns
tensors on the CPU. `python clients.py [NAME ...]` prints for each program and each mode in
`remote.MODES` the round trips of the last inference, whether the results equal those of the CPU,
and the number of replayed inferences. An entry whose library is not installed raises
ModuleNotFoundError.
"""

import importlib
import os
import sys
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).with_name('programs')))
os.environ.setdefault('HF_HUB_OFFLINE', '1')
os.environ.setdefault('YOLO_OFFLINE', '1')

CLIENTS = {}
SMALL = set()    # names of clients that take about a second
# names of clients whose shapes differ in every inference, so no inference is replayed
VARYING = set()
# Keeps library objects, because PyTorch removes the operators of a deleted library object.
OPERATORS = []


def client(small=False, varying=False):
    def add(build):
        name = build.__name__
        CLIENTS[name] = build
        if varying:
            VARYING.add(name)
        if small:
            SMALL.add(name)
        return build
    return add


def seeded(k):
    return torch.Generator().manual_seed(k)


def image(k, size=64, batch=1):
    return torch.rand(batch, 3, size, size, generator=seeded(k))


def tokens(k, count=12, vocabulary=200):
    return torch.randint(vocabulary, (1, count), generator=seeded(k))


def vision():
    return importlib.import_module('vision').torchvision


def forward(model, make_input, device, take=lambda y: [y]):
    """Run the usual steps: move the input to the device, call the model, move the result back."""
    model = model.eval().to(device)

    def infer(k):
        with torch.inference_mode():
            return [t.cpu() for t in take(model(make_input(k).to(device)))]
    return infer


# -- classification ------------------------------------------------------------------------------

def timm_model(name, size=64):
    def build(device):
        timm_ = timm()
        return forward(timm_.create_model(name, pretrained=False, num_classes=10),
                       lambda k: image(k, size), device)
    return build


def timm():
    vision()
    return importlib.import_module('timm')


@client(small=True)
def efficientnet_b0(device):
    return timm_model('efficientnet_b0')(device)


@client()
def swin_tiny(device):
    model = timm().create_model('swin_tiny_patch4_window7_224', pretrained=False, img_size=56,
                                num_classes=10)
    return forward(model, lambda k: image(k, 56), device)


@client(small=True)
def convnextv2_atto(device):
    return timm_model('convnextv2_atto')(device)


@client()
def resnet50_half(device):
    model = vision().models.resnet50(num_classes=10).half()
    return forward(model, lambda k: image(k, 32).half(), device)


@client()
def mobilenet_amp(device):
    infer = forward(vision().models.mobilenet_v3_small(num_classes=10), image, device)

    def under(k):
        with torch.autocast(device, dtype=torch.bfloat16):
            return infer(k)
    return under


# -- transformers --------------------------------------------------------------------------------

def transformers():
    vision()
    library = importlib.import_module('transformers')
    library.logging.set_verbosity_error()
    return library


@client(small=True)
def bert(device):
    t = transformers()
    model = t.BertModel(t.BertConfig(
        vocab_size=200, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=128)).eval().to(device)

    def infer(k):
        with torch.no_grad():
            ids = tokens(k).to(device)
            out = model(input_ids=ids, attention_mask=torch.ones_like(ids))
            return [out.last_hidden_state.cpu(), out.pooler_output.cpu()]
    return infer


@client()
def vit(device):
    t = transformers()
    model = t.ViTForImageClassification(t.ViTConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128,
        image_size=64, patch_size=16, num_labels=10))
    return forward(model, image, device, lambda out: [out.logits])


@client(small=True)
def gpt2_generate(device):
    """Generate 20 tokens by greedy search, with the cache that `generate` keeps."""
    t = transformers()
    model = t.GPT2LMHeadModel(t.GPT2Config(
        vocab_size=200, n_positions=64, n_embd=64, n_layer=2, n_head=4, bos_token_id=0,
        eos_token_id=None)).eval().to(device)

    def infer(k):
        ids = tokens(k, 6).to(device)
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=20,
                             do_sample=False, pad_token_id=0)
        return [out.cpu()]
    return infer


@client()
def gpt2_sample(device):
    t = transformers()
    model = t.GPT2LMHeadModel(t.GPT2Config(
        vocab_size=200, n_positions=64, n_embd=64, n_layer=2, n_head=4, bos_token_id=0,
        eos_token_id=None)).eval().to(device)

    def infer(k):
        torch.manual_seed(k)
        ids = tokens(k, 6).to(device)
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8,
                             do_sample=True, top_k=20, pad_token_id=0)
        return [out.cpu()]
    return infer


@client()
def whisper(device):
    t = transformers()
    config = t.WhisperConfig(
        vocab_size=200, num_mel_bins=16, encoder_layers=2, decoder_layers=2, d_model=64,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=128,
        decoder_ffn_dim=128, max_source_positions=50, max_target_positions=40, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, suppress_tokens=None,
        begin_suppress_tokens=None)
    model = t.WhisperForConditionalGeneration(config).eval().to(device)

    def infer(k):
        features = torch.randn(1, 16, 100, generator=seeded(k)).to(device)
        with torch.no_grad():
            return [model.generate(features, max_new_tokens=15, do_sample=False).cpu()]
    return infer


# -- detection -----------------------------------------------------------------------------------

def detection_operators():
    """Define nms and roi_align for the CPU, if torchvision's C++ library is not loaded.

    Torchvision's wheel has these operators only in this library.
    """
    if OPERATORS:
        return
    v = vision()
    if hasattr(torch.ops.torchvision, 'roi_align'):
        return
    library = torch.library.Library('torchvision', 'FRAGMENT')
    library.define('roi_align(Tensor input, Tensor rois, float spatial_scale, '
                   'SymInt pooled_height, SymInt pooled_width, int sampling_ratio, bool aligned) '
                   '-> Tensor')
    library.impl('nms', nms, 'CPU')
    roi_align = v.ops.roi_align.__globals__['_roi_align']
    library.impl('roi_align', roi_align, 'CPU')
    v.extension._assert_has_ops = v.ops.boxes._assert_has_ops = lambda: None
    v.ops.roi_align.__globals__['_assert_has_ops'] = lambda: None
    OPERATORS.append(library)


def nms(boxes, scores, threshold):
    order = scores.argsort(descending=True).tolist()
    rows = boxes.tolist()
    kept = []
    for k in order:
        if all(overlap(rows[k], rows[j]) <= threshold for j in kept):
            kept.append(k)
    return torch.tensor(kept, dtype=torch.int64)


def overlap(a, b):
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    inside = max(width, 0) * max(height, 0)
    return inside / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - inside + 1e-9)


@client()
def faster_rcnn(device):
    v = vision()
    detection_operators()
    model = v.models.detection.fasterrcnn_mobilenet_v3_large_320_fpn(
        weights=None, weights_backbone=None, num_classes=5, min_size=96, max_size=96,
        rpn_post_nms_top_n_test=20, box_score_thresh=0.0).eval().to(device)

    def infer(k):
        with torch.no_grad():
            found, = model([image(k, 96)[0].to(device)])
            return [found[name].cpu() for name in ('boxes', 'labels', 'scores')]
    return infer


def yolo(name, device):
    vision()
    detection_operators()
    library = importlib.import_module('ultralytics')
    model = library.YOLO(name)

    def infer(k):
        picture = (image(k)[0].permute(1, 2, 0) * 255).byte().numpy()
        result, = model.predict(picture, imgsz=64, conf=0.001, device=device, verbose=False)
        return [result.boxes.data.cpu()]
    return infer


@client()
def yolov8n(device):
    return yolo('yolov8n.yaml', device)


@client()
def yolo11n(device):
    return yolo('yolo11n.yaml', device)


# -- diffusion, recurrence, loops ----------------------------------------------------------------

@client()
def diffusion(device):
    """Run four steps of a small UNet, on noise from a random generator on the device."""
    vision()
    d = importlib.import_module('diffusers')
    model = d.UNet2DModel(sample_size=16, in_channels=3, out_channels=3, layers_per_block=1,
                          block_out_channels=(32, 32), norm_num_groups=8,
                          down_block_types=('DownBlock2D', 'AttnDownBlock2D'),
                          up_block_types=('AttnUpBlock2D', 'UpBlock2D')).eval().to(device)
    scheduler = d.DDIMScheduler()

    def infer(k):
        generator = torch.Generator(device).manual_seed(k)
        with torch.no_grad():
            x = torch.randn(1, 3, 16, 16, generator=generator, device=device)
            scheduler.set_timesteps(4)
            for t in scheduler.timesteps:
                x = scheduler.step(model(x, t).sample, t, x).prev_sample
            return [x.cpu()]
    return infer


@client(small=True)
def packed_lstm(device):
    layer = nn.LSTM(5, 8, 2, batch_first=True, bidirectional=True).eval().to(device)

    def infer(k):
        x = torch.rand(3, 6, 5, generator=seeded(k)).to(device)
        with torch.no_grad():
            packed = nn.utils.rnn.pack_padded_sequence(x, [6, 4, 2], batch_first=True)
            y, _ = nn.utils.rnn.pad_packed_sequence(layer(packed)[0], batch_first=True)
            return [y.cpu()]
    return infer


@client(small=True)
def benchmark_loop(device):
    """Measure the time of a model in the way that tutorials show.

    Record one event before the model and one after it. Synchronize before reading the time.
    """
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(),
                          nn.LazyLinear(10))
    model(image(0, 16))
    model = model.eval().to(device)
    timed = device == 'cuda'

    def infer(k):
        with torch.no_grad():
            x = image(k, 16).to(device, non_blocking=True)
            if timed:
                start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                start.record()
            y = model(x)
            if timed:
                end.record()
                torch.cuda.synchronize()
                assert start.elapsed_time(end) >= 0 and torch.cuda.max_memory_allocated() >= 0
            return [y.cpu()]
    return infer


class Pictures(torch.utils.data.Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return image(index, 8)[0]


@client()
def loader_with_workers(device):
    loader = torch.utils.data.DataLoader(Pictures(), 4, num_workers=2, pin_memory=True)
    model = nn.Conv2d(3, 4, 3).eval().to(device)

    def infer(k):
        with torch.no_grad():
            return [model(x.to(device, non_blocking=True)).cpu() for x in loader]
    return infer


# -- pictures, graphs and more transformers -------------------------------------------------------

@client()
def t5_beams(device):
    """Run an encoder, then a beam search whose three candidates exchange their caches."""
    t = transformers()
    model = t.T5ForConditionalGeneration(t.T5Config(
        vocab_size=200, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4,
        decoder_start_token_id=0, pad_token_id=0, eos_token_id=1)).eval().to(device)

    def infer(k):
        ids = tokens(k, 8).to(device)
        out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=10,
                             num_beams=3, num_return_sequences=2, do_sample=False,
                             output_scores=True, return_dict_in_generate=True)
        return [out.sequences.cpu(), out.sequences_scores.cpu()]
    return infer


@client()
def clip(device):
    # Without this import, the import of CLIP raises a TypeError.
    importlib.import_module('tokenizers')
    t = transformers()
    part = {'hidden_size': 32, 'intermediate_size': 64, 'num_hidden_layers': 2,
            'num_attention_heads': 4}
    model = t.CLIPModel(t.CLIPConfig(
        text_config={**part, 'vocab_size': 200, 'max_position_embeddings': 16, 'eos_token_id': 2,
                     'bos_token_id': 0, 'pad_token_id': 1},
        vision_config={**part, 'image_size': 32, 'patch_size': 8},
        projection_dim=24)).eval().to(device)

    def infer(k):
        with torch.no_grad():
            ids = tokens(k, 10).to(device)
            out = model(input_ids=ids, attention_mask=torch.ones_like(ids),
                        pixel_values=image(k, 32, 2).to(device))
            return [out.logits_per_image.softmax(-1).cpu(), out.text_embeds.cpu()]
    return infer


@client()
def unet_plus_plus(device):
    vision()
    library = importlib.import_module('segmentation_models_pytorch')
    model = library.UnetPlusPlus('resnet18', encoder_weights=None, classes=4)
    return forward(model, image, device, lambda y: [y.argmax(1), y.softmax(1)])


@client(small=True)
def kornia_filters(device):
    """Prepare camera images as a robot does before it runs a model.

    The number of passes of the loop in `canny` depends on the image.
    """
    library = importlib.import_module('kornia')

    def infer(k):
        with torch.no_grad():
            x = image(k, 32, 2).to(device)
            x = library.filters.gaussian_blur2d(x, (5, 5), (1.5, 1.5))
            x = library.filters.median_blur(x, (3, 3))
            grey = library.color.rgb_to_grayscale(x)
            small = library.geometry.resize(x, (20, 20), antialias=True)
            lab = library.color.rgb_to_lab(small)
            edges = library.filters.sobel(grey)
            size, found = library.filters.canny(grey)
            return [t.cpu() for t in (lab, edges, size, found)]
    return infer


@client(small=True)
def kornia_augment(device):
    """Change images at random: parameters are drawn on the CPU, and some images stay unchanged."""
    library = importlib.import_module('kornia').augmentation
    augment = library.AugmentationSequential(
        library.RandomHorizontalFlip(p=0.5), library.RandomAffine(15.0, p=1.0),
        library.RandomPerspective(0.3, p=0.5), library.RandomGamma((0.8, 1.2), p=1.0)).to(device)

    def infer(k):
        torch.manual_seed(k)
        with torch.no_grad():
            return [augment(image(k, 32, 2).to(device)).cpu()]
    return infer


@client()
def kornia_matcher(device):
    """Find the corners of two images and their SIFT descriptors, and match them."""
    library = importlib.import_module('kornia')
    feature = library.feature.SIFTFeature(24, device=torch.device(device))
    matcher = library.feature.DescriptorMatcher('smnn', 0.95)

    def infer(k):
        with torch.no_grad():
            first = library.filters.gaussian_blur2d(image(k, 64)[:, :1], (5, 5), (1.5, 1.5))
            second = torch.roll(first, (3, 5), (2, 3))
            places, _, one = feature(first.to(device))
            _, _, two = feature(second.to(device))
            distance, pairs = matcher(one[0], two[0])
            return [places.cpu(), distance.cpu(), pairs.cpu()]
    return infer


@client(small=True)
def graph_network(device):
    """Run a network with a GCN layer and a GAT layer on random graphs.

    Both layers search for edges from a node to itself.
    """
    library = importlib.import_module('torch_geometric')
    layers = library.nn

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = layers.GCNConv(8, 16), layers.GATConv(16, 4, heads=2)

        def forward(self, data):
            x = self.first(data.x, data.edge_index).relu()
            x = self.second(x, data.edge_index)
            return layers.global_mean_pool(x, data.batch).log_softmax(-1)

    model = Network().eval().to(device)

    def graph(k, count):
        edges = torch.randint(count, (2, 3 * count), generator=seeded(k))
        return library.data.Data(torch.rand(count, 8, generator=seeded(k)), edges)

    def infer(k):
        with torch.no_grad():
            data = library.data.Batch.from_data_list([graph(k, 10), graph(k + 1, 7)]).to(device)
            return [model(data).cpu()]
    return infer


@client(varying=True)
def graph_of_several_types(device):
    """Run a model on a graph with two kinds of nodes and three kinds of edges.

    The numbers of nodes and edges differ between inferences.
    """
    library = importlib.import_module('torch_geometric')
    types = [('user', 'rates', 'item'), ('item', 'rated_by', 'user'), ('user', 'knows', 'user')]
    layers = nn.ModuleList(library.nn.HeteroConv({
        t: library.nn.GATConv((8, 8), 8, add_self_loops=False) if t[0] != t[2]
        else library.nn.GCNConv(8, 8) for t in types}) for _ in range(2)).eval().to(device)

    def infer(k):
        data, draw = library.data.HeteroData(), seeded(k)
        sizes = {'user': 10 + k % 5, 'item': 7 + k % 3}
        for kind, size in sizes.items():
            data[kind].x = torch.rand(size, 8, generator=draw)
        for t in types:
            data[t].edge_index = torch.stack([
                torch.randint(sizes[end], (20 + k,), generator=draw) for end in (t[0], t[2])])
        data = data.to(device)
        with torch.no_grad():
            x = data.x_dict
            for layer in layers:
                x = {kind: y.relu() for kind, y in layer(x, data.edge_index_dict).items()}
            return [x['user'].cpu()]
    return infer


def small_gpt2(layers=2):
    t = transformers()
    return t.GPT2LMHeadModel(t.GPT2Config(
        vocab_size=200, n_positions=128, n_embd=64, n_layer=layers, n_head=4, bos_token_id=0,
        eos_token_id=None)).eval()


@client()
def gpt2_offloaded(device):
    """Run GPT-2 with its weights on the CPU; each layer first copies its weights to the device."""
    accelerate = importlib.import_module('accelerate')
    model = accelerate.cpu_offload(small_gpt2(), execution_device=torch.device(device))

    def infer(k):
        with torch.no_grad():
            return [model(tokens(k, 8).to(device)).logits.cpu()]
    return infer


@client(varying=True)
def gpt2_growing_cache(device):
    """Generate one token per inference, with a cache that grows from one inference to the next."""
    model = small_gpt2().to(device)
    kept = []

    def infer(k):
        with torch.no_grad():
            out = model(tokens(k, 1).to(device), past_key_values=kept.pop() if kept else None,
                        use_cache=True)
            kept.append(out.past_key_values)
            return [out.logits.cpu()]
    return infer


@client()
def gpt2_prompt_lookup(device):
    model = small_gpt2().to(device)

    def infer(k):
        ids = tokens(k, 6).repeat(1, 3).to(device)
        return [model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=20,
                               do_sample=False, pad_token_id=0,
                               prompt_lookup_num_tokens=3).cpu()]
    return infer


@client()
def gpt2_assisted(device):
    model, helper = small_gpt2().to(device), small_gpt2(1).to(device)

    def infer(k):
        ids = tokens(k, 6).to(device)
        return [model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=20,
                               do_sample=False, pad_token_id=0, assistant_model=helper).cpu()]
    return infer


def run(name, device, count):
    """Yield the results of each of ``count`` inferences of a client."""
    torch.manual_seed(0)
    infer = CLIENTS[name](device)
    for k in range(count):
        yield infer(k)


def main(names):
    import remote
    print(f'{"client":22}' + ''.join(f'{mode:>22}' for mode in remote.MODES))
    for name in names or CLIENTS:
        try:
            expected = list(run(name, 'cpu', COUNT))
        except ModuleNotFoundError as error:
            print(f'{name:22}{error}')
            continue
        row = []
        for mode in remote.MODES:
            engine = remote.start(mode)
            equal, before = True, 0
            try:
                for mine, theirs in zip(run(name, 'cuda', COUNT), expected, strict=True):
                    equal &= len(mine) == len(theirs) and all(map(torch.equal, mine, theirs))
                    trips, before = engine.machine.round_trips - before, engine.machine.round_trips
            except Exception as error:
                row.append(f'{type(error).__name__} {error}'[:21])
                if len(names) == 1:
                    raise
            else:
                row.append(f'{trips} {"equal" if equal else "DIFFERS"} {engine.inferences}')
        print(f'{name:22}' + ''.join(f'{text:>22}' for text in row), flush=True)


COUNT = int(os.environ.get('RRTO_INFERENCES', '8'))

if __name__ == '__main__':
    main(sys.argv[1:])
