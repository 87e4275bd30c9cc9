//! The weights of the CUDA device: matrices packed, all on the GPU.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicUsize, Ordering};

use weft_core::config::{Config, Experts};
use weft_core::weights::{Forms, LayerTensor, Tensor, Weights};

use crate::driver::{Gpu, Memory};
use crate::error::CudaError;
use crate::experts::ExpertShape;
use crate::matrices::{TileForms, Variants};
use crate::pack::{Packed, gate_row, read_vector};
use crate::shape::{BLOCK_ROWS, Chip, Shape, TILE_ROWS};
use crate::units::UnitForm;

pub(crate) struct ModelWeights {
    pub(crate) embed: Memory,
    pub(crate) layers: Vec<LayerWeights>,
    pub(crate) final_norm: Memory,
    /// None if the head is the embedding.
    head: Option<Memory>,
}

/// Vectors that a model lacks are 16 bytes that no kernel reads.
pub(crate) struct LayerWeights {
    pub(crate) attention_norm: Memory,
    /// Rows of q, then k, then v.
    pub(crate) qkv: Memory,
    pub(crate) bias: Memory,
    pub(crate) q_norm: Memory,
    pub(crate) k_norm: Memory,
    pub(crate) o: Memory,
    pub(crate) mlp_norm: Memory,
    /// Only of sparse layers.
    pub(crate) router: Memory,
    /// Tiles of gate and up, alternating; of sparse layers, those of each expert.
    pub(crate) gate_up: Memory,
    pub(crate) down: Memory,
}

impl ModelWeights {
    pub(crate) fn read(
        gpu: &Arc<Gpu>,
        config: &Config,
        from: &dyn Weights,
        shape: &Shape,
    ) -> Result<Self, CudaError> {
        let reader = &Reader { gpu, config, from, shape };
        let (embed, head) = (&shape.matrices.embed, &shape.matrices.head.0);
        // Packing takes most of the time, so every core does a part. The largest matrices come
        // first.
        std::thread::scope(|scope| {
            let embed = scope.spawn(|| reader.large_matrix(Tensor::Embed, embed));
            let read_head = || reader.large_matrix(Tensor::Head, head);
            let head = (!config.tied_head).then(|| scope.spawn(read_head));
            let layers = reader.layers()?;
            let joined = |thread: Thread<'_>| thread.join().expect("reading weights panicked");
            Ok(Self {
                embed: joined(embed)?,
                layers,
                final_norm: reader.vector(Tensor::FinalNorm)?,
                head: head.map(joined).transpose()?,
            })
        })
    }

    pub(crate) fn head(&self) -> &Memory {
        self.head.as_ref().unwrap_or(&self.embed)
    }
}

type Thread<'s> = std::thread::ScopedJoinHandle<'s, Result<Memory, CudaError>>;

/// Rows of a large matrix that a thread packs at a time: whole blocks, which matrices end with too.
const PART_ROWS: usize = 32 * BLOCK_ROWS;
const PLAIN: TileForms = TileForms::One(UnitForm::PLAIN);

/// Threads that pack layers: more would only wait for memory.
fn n_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get().min(12))
}

/// The most bytes of main memory that experts take while they are packed; one layer may take more.
const PACKED_BYTES: usize = 6 << 30;

struct Reader<'a> {
    gpu: &'a Arc<Gpu>,
    config: &'a Config,
    from: &'a dyn Weights,
    shape: &'a Shape,
}

impl Reader<'_> {
    /// Threads that pack layers: fewer if a layer's experts take much memory.
    fn n_threads(&self) -> usize {
        let of = |own: &ExpertShape| {
            let cuts = own.gate_up.all.iter().map(|(_, cut)| cut.expert_bytes * own.experts.count);
            cuts.max().unwrap_or(0)
        };
        let bytes = self.shape.experts.as_ref().map_or(0, of);
        n_threads().min(PACKED_BYTES / bytes.max(1)).max(1)
    }

    /// Packs all layers, each on the first free thread.
    fn layers(&self) -> Result<Vec<LayerWeights>, CudaError> {
        let n = u16::try_from(self.config.layers).expect("Config bounds the number of layers");
        let next = AtomicU16::new(0);
        let work = || {
            let mine = std::iter::from_fn(|| Some(next.fetch_add(1, Ordering::Relaxed)));
            let mine = mine.take_while(|layer| *layer < n);
            mine.map(|layer| Ok((layer, self.layer(layer)?))).collect::<Result<Vec<_>, CudaError>>()
        };
        let mut layers = Vec::new();
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.n_threads()).map(|_| scope.spawn(work)).collect();
            for thread in threads {
                layers.extend(thread.join().expect("reading weights panicked")?);
            }
            Ok::<(), CudaError>(())
        })?;
        layers.sort_by_key(|(layer, _)| *layer);
        Ok(layers.into_iter().map(|(_, weights)| weights).collect())
    }

    fn upload<T: Copy>(&self, values: &[T]) -> Result<Memory, CudaError> {
        let memory = Memory::new(self.gpu, "weights", size_of_val(values))?;
        memory.write(0, values)?;
        Ok(memory)
    }

    fn matrix(&self, tensor: Tensor, forms: &TileForms) -> Result<Memory, CudaError> {
        self.upload(&self.packer().matrix(tensor, forms)?)
    }

    /// The same by several threads, each with some tiles, if the rows can be read one by one.
    fn large_matrix(&self, tensor: Tensor, forms: &TileForms) -> Result<Memory, CudaError> {
        let shape = tensor.shape(self.config);
        let (rows, columns) = (shape[0], shape[1]);
        let has_parts = self.from.is_shared_by_rows(tensor) && *forms == PLAIN;
        let part = if has_parts { PART_ROWS } else { rows };
        let memory = Memory::new(self.gpu, "weights", forms.bytes(rows, columns))?;
        let next = AtomicUsize::new(0);
        let work = || {
            let mine = std::iter::from_fn(|| Some(next.fetch_add(part, Ordering::Relaxed)));
            mine.take_while(|first| *first < rows).try_for_each(|first| {
                let rows = first..rows.min(first + part);
                let packed = self.packer().rows(tensor, forms, rows)?;
                memory.write(forms.bytes(first, columns), &packed)
            })
        };
        let n_threads = if has_parts { n_threads() } else { 1 };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..n_threads).map(|_| scope.spawn(work)).collect();
            let mut joined = threads.into_iter().map(std::thread::ScopedJoinHandle::join);
            joined.try_for_each(|done| done.expect("reading weights panicked"))
        })?;
        Ok(memory)
    }

    fn packer(&self) -> Packer<'_> {
        Packer { config: self.config, from: self.from, shape: self.shape }
    }

    fn vector(&self, tensor: Tensor) -> Result<Memory, CudaError> {
        self.upload(&read_vector(self.from, tensor)?)
    }

    fn layer(&self, layer: u16) -> Result<LayerWeights, CudaError> {
        use LayerTensor as T;
        let matrices = &self.shape.matrices;
        let matrix = |kind, of: &Variants| {
            self.matrix(Tensor::Layer(layer, kind), of.forms(usize::from(layer)))
        };
        let vector = |kind| self.vector(Tensor::Layer(layer, kind));
        let vector_if = |there: bool, kind| match there {
            true => vector(kind),
            false => Memory::new(self.gpu, "weights", 0),
        };
        let (router, gate_up, down) = match self.config.experts_of(layer) {
            Some(experts) => self.experts(layer, experts)?,
            None => (
                Memory::new(self.gpu, "weights", 0)?,
                self.upload(&self.packer().gate_up(layer)?)?,
                matrix(T::Down, &matrices.down)?,
            ),
        };
        Ok(LayerWeights {
            attention_norm: vector(T::AttentionNorm)?,
            qkv: self.upload(&self.packer().qkv(layer)?)?,
            bias: self.bias(layer)?,
            q_norm: vector_if(self.config.qk_norm, T::QNorm)?,
            k_norm: vector_if(self.config.qk_norm, T::KNorm)?,
            o: matrix(T::O, &matrices.proj)?,
            mlp_norm: vector(T::MlpNorm)?,
            router,
            gate_up,
            down,
        })
    }

    /// The router of a sparse layer, and the matrices of its experts, one after the other.
    fn experts(
        &self,
        layer: u16,
        experts: &Experts,
    ) -> Result<(Memory, Memory, Memory), CudaError> {
        let router = self.matrix(Tensor::Layer(layer, LayerTensor::Router), &PLAIN)?;
        let own = self.shape.experts.as_ref().expect("the model has experts");
        if own.on_host {
            let none = || Memory::new(self.gpu, "weights", 0);
            return Ok((router, none()?, none()?));
        }
        let packer = self.packer();
        let gate_up = self.upload_all(&packer.expert_gate_up(layer, experts)?)?;
        let down = self.upload_all(&packer.expert_down(layer, experts)?)?;
        Ok((router, gate_up, down))
    }

    /// Copies matrices of one size to the GPU, one after the other.
    fn upload_all(&self, all: &[Packed]) -> Result<Memory, CudaError> {
        let each = all.first().map_or(0, |packed| packed.bytes.len());
        let memory = Memory::new(self.gpu, "weights", each * all.len())?;
        let mut uploads = all.iter().enumerate();
        uploads.try_for_each(|(i, packed)| memory.write(i * each, &packed.bytes))?;
        Ok(memory)
    }

    fn bias(&self, layer: u16) -> Result<Memory, CudaError> {
        let mut bias = Vec::new();
        if self.config.qkv_bias {
            let (q, kv) = (self.config.q_width(), self.config.kv_width());
            let parts =
                [(LayerTensor::QBias, q), (LayerTensor::KBias, kv), (LayerTensor::VBias, kv)];
            for (kind, width) in parts {
                let part = read_vector(self.from, Tensor::Layer(layer, kind))?;
                bias.extend_from_slice(&part[..width]);
            }
        }
        self.upload(&bias)
    }
}

/// Packs matrices.
struct Packer<'a> {
    config: &'a Config,
    from: &'a dyn Weights,
    shape: &'a Shape,
}

impl Packer<'_> {
    fn zeroed(&self, forms: &TileForms, rows: usize, columns: usize) -> Packed {
        Packed::zeroed(forms, rows, columns, self.shape.chip.longest_strip())
    }

    fn matrix(&self, tensor: Tensor, forms: &TileForms) -> Result<Vec<u8>, CudaError> {
        let shape = tensor.shape(self.config);
        let mut packed = self.zeroed(forms, shape[0], shape[1]);
        packed.read(self.from, tensor, |row| row)?;
        Ok(packed.bytes)
    }

    /// Some rows of a matrix, whole blocks unless they are the last, as a matrix of these rows.
    fn rows(
        &self,
        tensor: Tensor,
        forms: &TileForms,
        rows: Range<usize>,
    ) -> Result<Vec<u8>, CudaError> {
        let shape = tensor.shape(self.config);
        if rows == (0..shape[0]) {
            return self.matrix(tensor, forms);
        }
        let mut packed = self.zeroed(forms, rows.len(), shape[1]);
        packed.read_plain(self.from, tensor, rows)?;
        Ok(packed.bytes)
    }

    fn qkv(&self, layer: u16) -> Result<Vec<u8>, CudaError> {
        let (q, kv) = (self.config.q_width(), self.config.kv_width());
        let forms = self.shape.matrices.qkv.forms(usize::from(layer));
        let mut packed = self.zeroed(forms, q + 2 * kv, self.config.hidden);
        let parts = [(LayerTensor::Q, 0), (LayerTensor::K, q), (LayerTensor::V, q + kv)];
        for (kind, first) in parts {
            packed.read(self.from, Tensor::Layer(layer, kind), |row| first + row)?;
        }
        Ok(packed.bytes)
    }

    fn gate_up(&self, layer: u16) -> Result<Vec<u8>, CudaError> {
        let rows = 2 * self.config.intermediate.next_multiple_of(TILE_ROWS);
        let forms = self.shape.matrices.gate_up.forms(usize::from(layer));
        let mut packed = self.zeroed(forms, rows, self.config.hidden);
        packed.read(self.from, Tensor::Layer(layer, LayerTensor::Gate), gate_row)?;
        let up_row = |row| gate_row(row) + TILE_ROWS;
        packed.read(self.from, Tensor::Layer(layer, LayerTensor::Up), up_row)?;
        Ok(packed.bytes)
    }

    fn own_experts(&self) -> &ExpertShape {
        self.shape.experts.as_ref().expect("the model has experts")
    }

    /// A matrix for each expert.
    fn expert_gate_up(&self, layer: u16, experts: &Experts) -> Result<Vec<Packed>, CudaError> {
        let width = experts.intermediate;
        let rows = 2 * width.next_multiple_of(TILE_ROWS);
        let forms = self.own_experts().gate_up.forms(usize::from(layer));
        let zeroed = |_| self.zeroed(forms, rows, self.config.hidden);
        let mut all: Vec<Packed> = (0..experts.count).map(zeroed).collect();
        let gate = Tensor::Layer(layer, LayerTensor::ExpertGate);
        Packed::read_all(&mut all, self.from, gate, width, gate_row)?;
        let up_row = |row| gate_row(row) + TILE_ROWS;
        let up = Tensor::Layer(layer, LayerTensor::ExpertUp);
        Packed::read_all(&mut all, self.from, up, width, up_row)?;
        Ok(all)
    }

    /// The same.
    fn expert_down(&self, layer: u16, experts: &Experts) -> Result<Vec<Packed>, CudaError> {
        let hidden = self.config.hidden;
        let forms = self.own_experts().down.forms(usize::from(layer));
        let zeroed = |_| self.zeroed(forms, hidden, experts.intermediate);
        let mut all: Vec<Packed> = (0..experts.count).map(zeroed).collect();
        let down = Tensor::Layer(layer, LayerTensor::ExpertDown);
        Packed::read_all(&mut all, self.from, down, hidden, |row| row)?;
        Ok(all)
    }
}

/// The matrices of a model with its own head as a device packs them: embedding, head, then each
/// layer's qkv, o, router if it has experts, gate and up, down, after its variants and whether it has
/// experts. For the emulator of kernels.
pub fn packed_matrices(
    config: &Config,
    from: &dyn Weights,
    chip: Chip,
) -> Result<Vec<Vec<u8>>, CudaError> {
    let shape = &Shape::new(config, &Forms::of(from, config), chip)?;
    let packer = Packer { config, from, shape };
    let matrices = &shape.matrices;
    let mut all = vec![packer.matrix(Tensor::Embed, &matrices.embed)?];
    all.push(packer.matrix(Tensor::Head, &matrices.head.0)?);
    for layer in 0..config.layers {
        let (at, tensor) = (layer as u16, |kind| Tensor::Layer(layer as u16, kind));
        let variants = shape.variants_of(layer);
        let is_sparse = u16::from(config.experts_of(at).is_some());
        let numbers = variants.iter().chain([&is_sparse]);
        all.push(numbers.flat_map(|number| number.to_le_bytes()).collect());
        all.push(packer.qkv(at)?);
        all.push(packer.matrix(tensor(LayerTensor::O), matrices.proj.forms(layer))?);
        if let Some(experts) = config.experts_of(at) {
            all.push(packer.matrix(tensor(LayerTensor::Router), &PLAIN)?);
            let joined = |parts: Vec<Packed>| parts.into_iter().flat_map(|part| part.bytes);
            all.push(joined(packer.expert_gate_up(at, experts)?).collect());
            all.push(joined(packer.expert_down(at, experts)?).collect());
            continue;
        }
        all.push(packer.gate_up(at)?);
        all.push(packer.matrix(tensor(LayerTensor::Down), matrices.down.forms(layer))?);
    }
    Ok(all)
}
