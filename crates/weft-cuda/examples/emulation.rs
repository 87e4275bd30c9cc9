//! What `tools/emulate` needs of the host: the headers that kernels are compiled with, and the
//! reference, which computes again what the emulated kernels wrote.
//!
//!     cargo run -p weft-cuda --example emulation -- headers '{"model_type": "qwen3", ...}' plain 8 folder
//!     cargo run -p weft-cuda --example emulation -- check '{"model_type": "qwen3", ...}' plain dump...
//!     cargo run -p weft-cuda --example emulation -- constants qwen3-8b int4 132 folder
//!
//! The model is a named shape, or the text of a config.json; then its forms (see `coded`). `headers`
//! writes `generated/*.cuh` into a folder, for a GPU of so many multiprocessors, of which each has as
//! much shared memory as an H100's.
//! `check` reads dumps of `harness.cpp`: every op, on the inputs that the kernel had, must give what
//! the reference gives, within the bounds of `tests/parity.rs`. `constants` writes the headers of a
//! model all of whose matrices have one form, or those of Q4_K_M, for `bench/gpu/decode.cu`.

use std::error::Error;
use std::path::Path;

use half::bf16;
use proptest::prelude::*;
use weft_core::config::Config;
use weft_core::device::{Buffer, Device, Inspect, Lane, Limits, Outputs, Span, Step, shares};
use weft_core::kv::pages_for;
use weft_core::plan::{Op, plan};
use weft_core::reference::Reference;
use weft_core::shapes;
use weft_core::weights::{
    Coded, CodedRow, Form, Forms, LayerTensor, Quantised, RandomWeights, Tensor, TensorShape,
    Weights, WeightsError,
};
use weft_cuda::{Chip, packed_matrices, sources};
use weft_testing::Work;
use weft_testing::forms::{self, Mixed};
use weft_testing::parity::{Noise, assert_close, assert_routes_close, assert_shares_close};

/// What `tests/parity.rs` grants kernels on a GPU.
const NOISE: Noise = Noise { sums: 3e-5, weights: 0.01 };
/// As many positions and pages as the harness has.
const LIMITS: Limits = Limits { step_tokens: 8, step_outputs: 8, positions: 17_152, pages: 272 };

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["headers", model, forms, n_sms, folder] => {
            let config = config(model)?;
            write_headers(&config, given(&config, forms)?, n_sms.parse()?, folder)
        }
        ["check", model, forms, dumps @ ..] if !dumps.is_empty() => {
            let config = config(model)?;
            dumps.iter().try_for_each(|path| {
                let bytes = std::fs::read(path)?;
                let checked = check(&config, given(&config, forms)?, Dump(&bytes));
                checked.map_err(|error| format!("{path}: {error}").into())
            })
        }
        ["constants", model, form, n_sms, folder] => {
            write_constants(&config(model)?, form, n_sms.parse()?, folder)
        }
        _ => Err("`headers`, `check` or `constants` and what they take are wanted, see the source"
            .into()),
    }
}

fn config(model: &str) -> Result<Config, Box<dyn Error>> {
    Ok(match shapes::config(model) {
        Some(config) => config,
        None => Config::from_json(model.as_bytes())?,
    })
}

/// The matrices that a name stands for: none for a plain model whose matrices the harness makes;
/// plain ones, with or without routers that tie; those of one of `weft_testing::forms`; or with
/// several forms in the parts of each matrix.
fn given(config: &Config, name: &str) -> Result<Option<Given>, Box<dyn Error>> {
    let all = forms::all();
    let matrices = match name {
        "plain" => return Ok(None),
        "random" | "ties" => Mixed::new(config, &[], |_| None),
        "mixed" => Mixed::new(config, &[all[5], all[8], all[0]], |tensor| {
            Some(match tensor {
                Tensor::Layer(_, LayerTensor::K | LayerTensor::Gate) | Tensor::Head => 1,
                Tensor::Layer(1, LayerTensor::V | LayerTensor::Down) => 1,
                Tensor::Layer(1, LayerTensor::O) => 2,
                Tensor::Layer(_, LayerTensor::ExpertUp) => 1,
                Tensor::Layer(1, LayerTensor::ExpertDown) => 2,
                _ => 0,
            })
        }),
        number => Mixed::new(config, &[all[number.parse::<usize>()?]], |_| Some(0)),
    };
    Ok(Some(Given { matrices, ties: name == "ties" }))
}

/// Matrices, of whose routers every two rows may be equal.
struct Given {
    matrices: Mixed,
    ties: bool,
}

impl Weights for Given {
    fn read(
        &self,
        tensor: Tensor,
        visit: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), WeightsError> {
        if !self.ties || !matches!(tensor, Tensor::Layer(_, LayerTensor::Router)) {
            return self.matrices.read(tensor, visit);
        }
        let mut rows: Vec<Vec<f32>> = Vec::new();
        self.matrices.read(tensor, &mut |_, row| rows.push(row.to_vec()))?;
        (0..rows.len()).for_each(|row| visit(row, &rows[row / 2]));
        Ok(())
    }

    fn form(&self, tensor: Tensor) -> Form {
        self.matrices.form(tensor)
    }

    fn read_coded(
        &self,
        tensor: Tensor,
        visit: &mut dyn FnMut(usize, &CodedRow<'_>),
    ) -> Result<(), WeightsError> {
        self.matrices.read_coded(tensor, visit)
    }

    fn fingerprint(&self) -> [u8; 32] {
        [0; 32]
    }
}

/// Writes the headers of a model whose matrices have one form, or those of llama.cpp's Q4_K_M.
fn write_constants(
    config: &Config,
    form: &str,
    n_sms: usize,
    folder: &str,
) -> Result<(), Box<dyn Error>> {
    let plain = || RandomWeights::new(config, 1);
    let coded = |form| Forms::of(&Quantised::new(plain(), form), config);
    let forms = match form {
        "plain" => Forms::of(&plain(), config),
        "int4" => coded(Coded::int(4)),
        "int8" => coded(Coded::int(8)),
        "q4_k" => coded(Coded::Q4_K),
        "q6_k" => coded(Coded::Q6_K),
        "q4_k_m" => Forms::of(&Quantised::q4_k_m(plain(), config), config),
        other => {
            let known = "plain, int4, int8, q4_k, q6_k and q4_k_m";
            return Err(format!("{other} is none of {known}").into());
        }
    };
    write_generated(config, &forms, Chip { n_sms, ..Chip::HOPPER }, Path::new(folder))
}

/// Writes `generated/*.cuh`.
fn write_generated(
    config: &Config,
    forms: &Forms,
    chip: Chip,
    folder: &Path,
) -> Result<(), Box<dyn Error>> {
    let generated = |(name, _): &(String, String)| name.starts_with("generated/");
    std::fs::create_dir_all(folder.join("generated"))?;
    for (name, text) in sources(config, forms, chip)?.into_iter().filter(generated) {
        std::fs::write(folder.join(name), text)?;
    }
    Ok(())
}

/// Writes the headers; of a model whose matrices are given also those, each after its length.
fn write_headers(
    config: &Config,
    given: Option<Given>,
    n_sms: usize,
    folder: &str,
) -> Result<(), Box<dyn Error>> {
    let (chip, folder) = (Chip { n_sms, has_warpgroups: false, ..Chip::HOPPER }, Path::new(folder));
    let forms = given.as_ref().map_or_else(Forms::default, |weights| Forms::of(weights, config));
    write_generated(config, &forms, chip, folder)?;
    let Some(weights) = given else { return Ok(()) };
    let matrices = packed_matrices(config, &weights, chip)?;
    let with_length = |bytes: Vec<u8>| [&(bytes.len() as u64).to_le_bytes(), &bytes[..]].concat();
    let all: Vec<u8> = matrices.into_iter().flat_map(with_length).collect();
    Ok(std::fs::write(folder.join("matrices"), all)?)
}

/// What is left of a dump; `dump_*` in `harness.cpp` write what is read here, in this order.
struct Dump<'a>(&'a [u8]);

impl Dump<'_> {
    fn words(&mut self, n: usize) -> Vec<u32> {
        let (words, rest) = self.0.split_at(n * 4);
        self.0 = rest;
        let (words, _) = words.as_chunks::<4>();
        words.iter().map(|word| u32::from_le_bytes(*word)).collect()
    }

    fn number(&mut self) -> usize {
        self.words(1)[0] as usize
    }

    fn floats(&mut self, n: usize) -> Vec<f32> {
        self.words(n).into_iter().map(f32::from_bits).collect()
    }

    /// bf16.
    fn values(&mut self, n: usize) -> Vec<f32> {
        let (values, rest) = self.0.split_at(n * 2);
        self.0 = rest;
        let (values, _) = values.as_chunks::<2>();
        values.iter().map(|value| bf16::from_le_bytes(*value).to_f32()).collect()
    }

    fn lane(&mut self) -> Work {
        let n_tokens = self.number();
        let [tokens, positions, store_at] = std::array::from_fn(|_| self.words(n_tokens));
        let spans: Vec<Span> = (0..self.number())
            .map(|_| {
                let [first_page, first_row, len, position, home_position] =
                    std::array::from_fn(|_| self.number());
                let pages = first_page as u32..(first_page + pages_for(first_row + len)) as u32;
                Span { pages: pages.collect(), first_row, len, home_position, position }
            })
            .collect();
        let n_marks = self.number();
        let marks = self.words(n_marks);
        let key_positions = positions.clone();
        Work { tokens, positions, key_positions, store_at, spans, marks, outputs: Outputs::Last }
    }
}

/// The tensors of a dump, in the order of their use.
struct DumpedWeights {
    config: Config,
    /// Matrices that are not in the dump.
    given: Option<Given>,
    embed: Vec<f32>,
    head: Vec<f32>,
    layers: Vec<DumpedLayer>,
    final_norm: Vec<f32>,
}

/// The projections and their biases are one list each; rows of gate and up take turns.
struct DumpedLayer {
    attention_norm: Vec<f32>,
    qkv: Vec<f32>,
    bias: Vec<f32>,
    q_norm: Vec<f32>,
    k_norm: Vec<f32>,
    o: Vec<f32>,
    mlp_norm: Vec<f32>,
    gate_up: Vec<f32>,
    down: Vec<f32>,
}

impl DumpedWeights {
    fn read(config: &Config, given: Option<Given>, from: &mut Dump<'_>) -> Self {
        let Config { hidden, vocab, intermediate, head_dim, .. } = *config;
        let qkv_rows = config.q_width() + 2 * config.kv_width();
        let is_plain = usize::from(given.is_none());
        Self {
            config: config.clone(),
            given,
            embed: from.values(is_plain * vocab * hidden),
            head: from.values(is_plain * vocab * hidden),
            layers: (0..config.layers)
                .map(|_| DumpedLayer {
                    attention_norm: from.values(hidden),
                    qkv: from.values(is_plain * qkv_rows * hidden),
                    bias: from.values(qkv_rows),
                    q_norm: from.values(head_dim),
                    k_norm: from.values(head_dim),
                    o: from.values(is_plain * hidden * config.q_width()),
                    mlp_norm: from.values(hidden),
                    gate_up: from.values(is_plain * 2 * intermediate * hidden),
                    down: from.values(is_plain * hidden * intermediate),
                })
                .collect(),
            final_norm: from.values(hidden),
        }
    }

    /// A tensor's list, the row that the tensor begins with, and how far its rows are apart.
    fn place(&self, tensor: Tensor) -> (&[f32], usize, usize) {
        let (q, kv) = (self.config.q_width(), self.config.kv_width());
        let Tensor::Layer(layer, kind) = tensor else {
            return match tensor {
                Tensor::Embed => (&self.embed, 0, 1),
                Tensor::Head => (&self.head, 0, 1),
                _ => (&self.final_norm, 0, 1),
            };
        };
        let own = &self.layers[usize::from(layer)];
        match kind {
            LayerTensor::AttentionNorm => (&own.attention_norm, 0, 1),
            LayerTensor::Q => (&own.qkv, 0, 1),
            LayerTensor::K => (&own.qkv, q, 1),
            LayerTensor::V => (&own.qkv, q + kv, 1),
            LayerTensor::QBias => (&own.bias[..q], 0, 1),
            LayerTensor::KBias => (&own.bias[q..q + kv], 0, 1),
            LayerTensor::VBias => (&own.bias[q + kv..], 0, 1),
            LayerTensor::QNorm => (&own.q_norm, 0, 1),
            LayerTensor::KNorm => (&own.k_norm, 0, 1),
            LayerTensor::O => (&own.o, 0, 1),
            LayerTensor::MlpNorm => (&own.mlp_norm, 0, 1),
            LayerTensor::Gate => (&own.gate_up, 0, 2),
            LayerTensor::Up => (&own.gate_up, 1, 2),
            LayerTensor::Down => (&own.down, 0, 1),
            LayerTensor::Router
            | LayerTensor::ExpertGate
            | LayerTensor::ExpertUp
            | LayerTensor::ExpertDown => unreachable!("matrices of experts are given"),
        }
    }
}

impl Weights for DumpedWeights {
    fn read(
        &self,
        tensor: Tensor,
        visit: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), WeightsError> {
        let shape = TensorShape::new(tensor, &self.config);
        let is_matrix = tensor.shape(&self.config).len() > 1;
        if let Some(given) = self.given.as_ref().filter(|_| is_matrix) {
            return given.read(tensor, visit);
        }
        let (list, first, apart) = self.place(tensor);
        let rows = list.chunks_exact(shape.row()).skip(first).step_by(apart);
        rows.take(shape.rows()).enumerate().for_each(|(row, values)| visit(row, values));
        Ok(())
    }

    fn form(&self, tensor: Tensor) -> Form {
        self.given.as_ref().map_or(Form::Plain, |given| given.form(tensor))
    }

    fn read_coded(
        &self,
        tensor: Tensor,
        visit: &mut dyn FnMut(usize, &CodedRow<'_>),
    ) -> Result<(), WeightsError> {
        self.given.as_ref().expect("plain matrices have no codes").read_coded(tensor, visit)
    }

    fn fingerprint(&self) -> [u8; 32] {
        [0; 32]
    }
}

/// The buffers that an op writes, as far as the kernel leaves them in ordinary memory.
fn written(op: Op) -> &'static [Buffer] {
    match op {
        Op::Embed | Op::ProjAdd { .. } | Op::DownAdd { .. } | Op::ExpertDownAdd { .. } => {
            &[Buffer::X]
        }
        Op::NormQkv { .. } => &[Buffer::Q, Buffer::K, Buffer::V],
        Op::Attend { .. } => &[Buffer::A],
        Op::NormGateUp { .. } => &[Buffer::H],
        Op::NormRoute { .. } => &[Buffer::Routes],
        Op::ExpertGateUp { .. } => &[Buffer::ExpertH],
        Op::RopeStore { .. } | Op::NormHead => &[],
    }
}

/// Whether the experts of a token are such as ties go to the lower index, if every two tie.
fn lower_come_first(experts: &[f32]) -> bool {
    experts.iter().all(|expert| expert % 2.0 == 0.0 || experts.contains(&(expert - 1.0)))
}

/// Runs every op of the plan on the reference, with the inputs that the kernel had.
fn check(config: &Config, given: Option<Given>, mut dump: Dump<'_>) -> Result<(), TestCaseError> {
    let ties = given.as_ref().is_some_and(|given| given.ties);
    let weights = DumpedWeights::read(config, given, &mut dump);
    let works: Vec<Work> = (0..dump.number()).map(|_| dump.lane()).collect();
    let lanes: Vec<Lane<'_>> = works.iter().map(Work::lane).collect();
    let step = Step { lanes: &lanes };
    let n_tokens = step.n_tokens();
    let mut reference =
        Reference::<bf16>::new(config, &weights, LIMITS).expect("weights of the config");
    let width = config.kv_width();
    for layer in 0..config.layers as u16 {
        for span in works.iter().flat_map(|work| &work.spans) {
            for row in 0..span.len {
                let (k, v) = (dump.values(width), dump.values(width));
                reference.write_kv_row(layer, span.slot(row), &k, &v);
            }
        }
    }
    for op in plan(config) {
        reference.run(&[op], &step).expect("the reference runs any op");
        for buffer in Buffer::of(config) {
            let n = n_tokens * buffer.width(config);
            let are_routes = buffer == Buffer::Routes;
            let ours = if are_routes { dump.floats(n) } else { dump.values(n) };
            if !written(op).contains(&buffer) {
                continue;
            }
            let is_attend = matches!(op, Op::Attend { .. });
            let noise = if is_attend { NOISE.weights } else { NOISE.sums };
            let theirs = &reference.read(buffer)[..ours.len()];
            if are_routes {
                let chosen = buffer.width(config) / 2;
                assert_routes_close(&ours, theirs, chosen)?;
                let of_token = |routes: &[f32]| !ties || lower_come_first(&routes[..chosen]);
                prop_assert!(ours.chunks(2 * chosen).all(of_token), "{op}: {ours:?}");
            } else {
                assert_close(&format!("{op} {buffer:?}"), &ours, theirs, noise)?;
            }
            // The next op of both has the same input.
            let mut all = reference.read(buffer);
            all[..ours.len()].copy_from_slice(&ours);
            reference.write(buffer, &all);
        }
        let slots = works.iter().flat_map(|work| &work.store_at);
        for (layer, slot) in (0..config.layers as u16)
            .flat_map(|layer| slots.clone().map(move |slot| (layer, *slot)))
        {
            let (k, v) = (dump.values(width), dump.values(width));
            if op == (Op::RopeStore { layer }) {
                let theirs = reference.kv_row(layer, slot);
                assert_close(&format!("{op} keys"), &k, &theirs.0, NOISE.sums)?;
                assert_close(&format!("{op} values"), &v, &theirs.1, 0.0)?;
                reference.write_kv_row(layer, slot, &k, &v);
            }
        }
        for (lane, work) in works.iter().enumerate() {
            let sums = dump.floats(work.marks.len() + 1);
            // A launch adds up the shares of all its layers, a call of the reference those of one.
            if op == (Op::Attend { layer: 0 }) {
                assert_shares_close(
                    &shares(&sums),
                    &reference.attention(lane, work.last_output()),
                    NOISE,
                )?;
            }
        }
    }
    for output in 0..step.n_outputs() {
        let ours = dump.floats(config.vocab);
        assert_close("logits", &ours, reference.logits(output), NOISE.sums)?;
    }
    prop_assert!(dump.0.is_empty(), "the dump has more than was read");
    Ok(())
}
