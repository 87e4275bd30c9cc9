//! Seeds of GGUF files: every number format, every family, tokenizers, and hostile files.

use weft_core::weights::Gguf;
use weft_testing::gguf::{GgufFile, Stored};

/// Formats whose blocks have 32 elements, or one: their number in files, and the bytes of 32.
const SMALL_BLOCKS: [(u32, usize); 10] =
    [(2, 18), (3, 20), (6, 22), (7, 24), (8, 34), (20, 18), (39, 17), (0, 128), (1, 64), (30, 64)];

/// Formats whose blocks have 256 elements, and the bytes of a block.
const LARGE_BLOCKS: [(u32, usize); 6] =
    [(10, 84), (11, 110), (12, 144), (13, 176), (14, 210), (23, 136)];

/// A byte that gives finite scales in every format, and codes that are not zero.
const BYTE: u8 = 0x11;

/// The files, by name.
pub fn seeds(tokenizer: &[u8]) -> Vec<(String, Vec<u8>)> {
    let whole = [
        ("qwen3", GgufFile::tiny()),
        ("llama", llama()),
        ("qwen2", qwen2()),
        ("blocks_of_256", large_blocks()),
    ];
    let mut files: Vec<(String, Vec<u8>)> =
        whole.into_iter().map(|(name, file)| (name.to_owned(), file.bytes())).collect();
    for rotated in 0..SMALL_BLOCKS.len() / 2 {
        files.push((format!("blocks_of_32_{rotated}"), small_blocks(2 * rotated).bytes()));
    }
    for (name, bytes) in &files {
        assert!(is_whole(bytes), "{name} is no valid seed");
    }
    for pre in ["qwen2", "qwen35", "llama-bpe", "tekken", "smollm", "gpt-2"] {
        files.push((format!("tokenizer_{pre}"), with_tokenizer(tokenizer, pre).bytes()));
    }
    files.extend(hostile());
    files
}

/// Whether the file has a config and weights for it.
fn is_whole(bytes: &[u8]) -> bool {
    let gguf = Gguf::from_bytes("seed", bytes.to_vec()).expect("a GGUF file");
    let config = gguf.config().expect("a config");
    gguf.weights(&config).is_ok()
}

fn is_matrix(tensor: &Stored) -> bool {
    tensor.shape.len() == 2
}

/// Each matrix in another format, the first in the one with this number.
fn small_blocks(first: usize) -> GgufFile {
    let mut file = GgufFile::tiny();
    let formats = SMALL_BLOCKS.iter().cycle().skip(first);
    for (tensor, (kind, bytes)) in file.tensors.iter_mut().filter(|t| is_matrix(t)).zip(formats) {
        tensor.kind = *kind;
        tensor.bytes = vec![BYTE; tensor.shape[1] as usize * bytes];
    }
    file
}

/// 256 wide, so that rows are whole blocks; attention and MLP are narrow, so that it stays small.
fn large_blocks() -> GgufFile {
    let mut file = GgufFile::tiny();
    for (key, number) in [
        ("embedding_length", 256),
        ("feed_forward_length", 2),
        ("attention.head_count", 1),
        ("attention.key_length", 2),
    ] {
        file.set_u32(&format!("qwen3.{key}"), number);
    }
    let mut formats = LARGE_BLOCKS.iter();
    for tensor in &mut file.tensors {
        let f32s = |n: u64| vec![BYTE; 4 * n as usize];
        match tensor.name.as_str() {
            "blk.0.attn_output.weight" | "blk.0.ffn_down.weight" => {
                (tensor.shape, tensor.kind, tensor.bytes) = (vec![2, 256], 0, f32s(512));
            }
            name if is_matrix(tensor) => {
                let rows = if name == "token_embd.weight" { 4 } else { 2 };
                let (kind, bytes) = formats.next().expect("as many formats as matrices");
                tensor.shape = vec![256, rows];
                (tensor.kind, tensor.bytes) = (*kind, vec![BYTE; rows as usize * bytes]);
            }
            name => {
                let width = if name.contains("_q_") || name.contains("_k_") { 2 } else { 256 };
                (tensor.shape, tensor.bytes) = (vec![width], f32s(width));
            }
        }
    }
    file
}

/// Another family with the same keys and without the norms of queries and keys.
fn of_family(family: &str) -> GgufFile {
    let mut file = GgufFile::tiny();
    for (key, _) in &mut file.keys {
        *key = key.replace("qwen3.", &format!("{family}."));
    }
    file.set_text("general.architecture", family);
    file.tensors.retain(|t| !t.name.contains("attn_q_norm") && !t.name.contains("attn_k_norm"));
    file
}

fn f32s(name: &str, shape: Vec<u64>) -> Stored {
    let bytes = 1.0_f32.to_le_bytes().repeat(shape.iter().product::<u64>() as usize);
    Stored { name: name.to_owned(), shape, kind: 0, offset: None, bytes }
}

/// A head that is not tied, and divisors of the rotary frequencies.
fn llama() -> GgufFile {
    let mut file = of_family("llama");
    file.tensors.push(f32s("output.weight", vec![32, 4]));
    file.tensors.push(f32s("rope_freqs.weight", vec![8]));
    file
}

/// Biases, YaRN, and the older version of the container with another alignment.
fn qwen2() -> GgufFile {
    let mut file = of_family("qwen2");
    for (name, width) in [("q", 32), ("k", 16), ("v", 16)] {
        file.tensors.push(f32s(&format!("blk.0.attn_{name}.bias"), vec![width]));
    }
    file.set_text("qwen2.rope.scaling.type", "yarn");
    file.set_f32("qwen2.rope.scaling.factor", 4.0);
    file.set_u32("qwen2.rope.scaling.original_context_length", 16);
    (file.version, file.alignment) = (2, Some(8));
    file
}

/// No tensors, but a tokenizer, a template and settings.
fn with_tokenizer(tokenizer: &[u8], pre: &str) -> GgufFile {
    let mut file = GgufFile::tiny();
    file.tensors.clear();
    let json = serde_json::from_slice(tokenizer).expect("a tokenizer");
    file.add_tokenizer(&json, pre, 300);
    file.set_u32("tokenizer.ggml.bos_token_id", 1);
    file.set_u32("tokenizer.ggml.eos_token_id", 2);
    file.set("tokenizer.ggml.add_bos_token", 7, &[1]);
    file.set_text("tokenizer.chat_template", "{{ messages[0].content }}");
    file.set_f32("general.sampling.temp", 0.5);
    file
}

/// Files that ask for more than they have, and files that contradict themselves.
fn hostile() -> Vec<(String, Vec<u8>)> {
    let with = |change: fn(&mut GgufFile)| {
        let mut file = GgufFile::tiny();
        change(&mut file);
        file.bytes()
    };
    let whole = GgufFile::tiny().bytes();
    let mut counts = whole.clone();
    counts[8..24].fill(0xff);
    let files = [
        ("hostile_counts", counts),
        ("hostile_cut", whole[..whole.len() / 2].to_vec()),
        ("hostile_overlap", with(|file| file.tensors[1].offset = Some(0))),
        ("hostile_offset", with(|file| file.tensors[1].offset = Some(u64::MAX - 31))),
        ("hostile_shape", with(|file| file.tensors[0].shape = vec![u64::MAX / 2, 4])),
        ("hostile_kind", with(|file| file.tensors[0].kind = 4096)),
        ("hostile_alignment", with(|file| file.alignment = Some(3))),
        ("hostile_text", with(|file| file.set("a", 8, &u64::MAX.to_le_bytes()))),
        ("hostile_list", with(|file| file.set_list("a", 8, usize::MAX, &[]))),
        ("hostile_lists", with(|file| file.set_list("a", 9, 3, &[9; 36]))),
        ("hostile_twice", with(|file| file.keys.push(file.keys[1].clone()))),
        ("hostile_split", with(|file| file.set_u32("split.count", 3))),
    ];
    files.map(|(name, bytes)| (name.to_owned(), bytes)).into()
}
