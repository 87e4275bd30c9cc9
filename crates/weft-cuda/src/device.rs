//! The device itself: all its memory, and how a step runs on it.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use weft_core::config::Config;
use weft_core::device::{
    Buffer, Device, DeviceError, HostExperts, Inspect, Limits, PageRows, Step, shares,
};
use weft_core::dtype::Dtype;
use weft_core::kv::{PAGE_ROWS, PageId, Slot};
use weft_core::plan::{Op, plan};
use weft_core::sampling::{Logprobs, Sampler};
use weft_core::store::{HostRows, PackedRows, RowMemory};
use weft_core::weights::{Forms, Weights};

use crate::ahead;
use crate::buffers::{Buffers, rope_table};
use crate::driver::{self, Gpu, Memory};
use crate::error::CudaError;
use crate::graphs::{self, Graphs};
use crate::host_experts::OnHost;
use crate::in_flight::{Asked, InFlight};
use crate::kernels::{self, Kernels};
use crate::kv::{Kv, place};
use crate::logits::HostLogits;
use crate::modules::Modules;
use crate::persistent::choice::Choice;
use crate::persistent::{self, Coming, Persistent};
use crate::rows::Mover;
use crate::sampling::{Chosen, Sampling};
use crate::shape::Shape;
use crate::start_parts::StartParts;
use crate::tables::{Counts, Family, GroupCounts, Lists, SplitRule, Tables};
use crate::weights::ModelWeights;

pub(crate) use crate::options::{Launches, Options};

/// The device. Computes in bf16, whatever the model's own format.
pub struct CudaDevice {
    pub(crate) graphs: Graphs,
    pub(crate) persistent: Option<Persistent>,
    pub(crate) choice: Choice,
    pub(crate) coming: Coming,
    /// Steps before the persistent kernel may take over; for tests.
    pub(crate) delay: usize,
    pub(crate) kernels: Kernels,
    pub(crate) modules: Modules,
    pub(crate) weights: ModelWeights,
    pub(crate) kv: Kv,
    /// cos and sin: f32 \[2 · positions\]\[head_dim/2\]\[2\]
    pub(crate) rope: Memory,
    pub(crate) buffers: Buffers,
    pub(crate) few: Tables,
    pub(crate) many: Tables,
    pub(crate) group_counts: GroupCounts,
    pub(crate) lists: Lists,
    pub(crate) sampling: Sampling,
    pub(crate) mover: Mover,
    pub(crate) in_flight: InFlight,
    /// The experts, if they lie in main memory.
    pub(crate) on_host: Option<OnHost>,
    pub(crate) shape: Shape,
    pub(crate) config: Config,
    pub(crate) plan: Vec<Op>,
    pub(crate) limits: Limits,
    pub(crate) launches: Launches,
    pub(crate) logits: HostLogits,
    /// Whether a step may have written to pages.
    pub(crate) has_rows: bool,
    started: StartParts,
    pub(crate) gpu: Arc<Gpu>,
}

impl Drop for CudaDevice {
    /// Waits for the GPU: unused steps that were started ahead may still write to the host's
    /// memory, and copies may still use pages.
    fn drop(&mut self) {
        self.gpu.bind();
        self.stop();
        self.mover.close();
        let _ = self.gpu.synchronize();
    }
}

impl CudaDevice {
    /// Copies the weights to the GPU while the kernels of tokens are compiled, and allocates all
    /// memory that runs will need. Other kernels are compiled on, beside the first steps.
    pub fn new(
        config: &Config,
        weights: &dyn Weights,
        options: Options,
    ) -> Result<Self, CudaError> {
        Self::create(config, weights, options, None)
    }

    /// The same without the model's experts: these lie in main memory, and the device hands their
    /// ops over. All launches are [`Launches::Ops`].
    ///
    /// # Errors
    /// [`CudaError::Unsupported`] if the model has no experts.
    pub fn with_host_experts(
        config: &Config,
        weights: &dyn Weights,
        options: Options,
        experts: Box<dyn HostExperts>,
    ) -> Result<Self, CudaError> {
        if config.experts.is_none() {
            return Err(CudaError::Unsupported("the model has no experts".to_owned()));
        }
        let options = Options { launches: Launches::Ops, ..options };
        Self::create(config, weights, options, Some(experts))
    }

    fn create(
        config: &Config,
        weights: &dyn Weights,
        options: Options,
        experts: Option<Box<dyn HostExperts>>,
    ) -> Result<Self, CudaError> {
        let mut started = StartParts::begin();
        let Options { limits, launches, tiles_to_lay, .. } = options;
        let gpu = driver::open(0)?;
        started.end("context");
        let forms = Forms::of(weights, config);
        let shape = Shape::new(config, &forms, options.chip.unwrap_or(gpu.facts.chip))?;
        let shape = shape.with_experts_on_host(experts.is_some());
        let (sources, arch) = ahead::wanted(config, &forms, &shape, &options, &gpu.facts)?;
        let mut modules = Modules::begin(&gpu, sources, &arch)?;
        if launches == Launches::Persistent {
            modules.begin_persistent();
        }
        let kernels = Kernels::of(&modules, &shape);
        started.end("sources");
        let kv = Kv::new(&gpu, config, shape.dim, limits.pages)?;
        started.end("pages");
        let plan = plan(config);
        let weights = ModelWeights::read(&gpu, config, weights, &shape)?;
        started.end("weights");
        let parts = persistent::Parts {
            gpu: &gpu,
            config,
            shape: &shape,
            weights: &weights,
            kv: &kv,
            limits: &limits,
        };
        let (persistent, choice) = persistent::make(&parts, &modules, &plan, launches)?;
        let mut device = Self {
            graphs: Graphs::default(),
            persistent,
            choice,
            coming: Coming::default(),
            delay: 0,
            rope: rope_table(&gpu, config, &limits)?,
            buffers: Buffers::new(&gpu, config, &shape, &limits)?,
            few: Tables::new(&gpu, &limits, Family::Few)?,
            many: Tables::new(&gpu, &limits, Family::Many)?,
            group_counts: GroupCounts::new(&gpu)?,
            weights,
            lists: Lists::new(SplitRule::new(config, &shape, &limits, tiles_to_lay)),
            sampling: Sampling::new(&gpu, config, &limits)?,
            mover: Mover::new(&gpu, config, &kernels, &kv)?,
            kernels,
            modules,
            kv,
            in_flight: InFlight::default(),
            on_host: OnHost::new(&gpu, config, &limits, experts)?,
            plan,
            config: config.clone(),
            logits: HostLogits::new(&gpu, limits.step_outputs.max(1), config.vocab)?,
            shape,
            limits,
            launches,
            has_rows: false,
            started,
            gpu,
        };
        device.started.end("buffers");
        device.kernels.ready_for_tokens(Chosen::ByHost)?;
        device.started.end("kernels of tokens");
        device.expect_persistent();
        device.started.end("persistent kernel");
        Ok(device)
    }

    /// Bytes of the GPU's memory that this device has allocated.
    pub fn memory_bytes(&self) -> u64 {
        self.gpu.taken_bytes()
    }

    /// Clears the shares of attention, in the stream.
    pub(crate) fn clear_shares(&self, counts: &Counts) -> Result<(), CudaError> {
        let bytes = counts.n_cells * self.config.heads * 4;
        let shares = &self.buffers.shares;
        self.gpu.clear(shares, 0..bytes.min(shares.bytes))
    }

    /// The shares of attention of cells, summed over heads in order, as kernels sum the shares that
    /// they publish.
    fn cell_shares(&self, cells: Range<usize>) -> Result<Vec<f32>, CudaError> {
        self.stop();
        let heads = self.config.heads;
        let mut shares = vec![0.0_f32; cells.len() * heads];
        self.buffers.shares.read(cells.start * heads * 4, &mut shares)?;
        Ok(shares.chunks_exact(heads).map(|cell| cell.iter().sum()).collect())
    }

    pub(crate) fn device_error(&self, (op, error): (Op, CudaError)) -> DeviceError {
        DeviceError { device: self.describe(), op: op.to_string(), reason: error.to_string() }
    }
}

/// For methods of the trait that cannot return an error: panics if the GPU failed.
fn expect<T>(result: Result<T, CudaError>) -> T {
    result.unwrap_or_else(|error| panic!("the GPU failed: {error}"))
}

impl Device for CudaDevice {
    fn describe(&self) -> String {
        let how = match self.launches {
            Launches::Auto if self.choice.is_mostly_persistent() => "persistent",
            Launches::Persistent => "persistent",
            Launches::Auto | Launches::Graph => "graph",
            Launches::Ops => "ops",
        };
        let experts = self.on_host.as_ref().map(OnHost::describe);
        let experts = experts.map_or_else(String::new, |place| format!(" · experts on {place}"));
        format!("CUDA · {} · bf16 · {how}{experts}", self.gpu.facts.name)
    }

    fn details(&self) -> Option<String> {
        let (all, here) = self.modules.compiled();
        let from = kernels::source_folder();
        let from = from.map_or_else(String::new, |path| format!(" from {}", path.display()));
        let modules = format!("{all} modules of kernels{from}, {here} of them compiled now");
        Some(match (self.launches, self.coming) {
            (Launches::Auto, Coming::Settled) => format!("{}; {modules}", self.choice),
            (Launches::Auto, _) => format!("graph until persistent is compiled; {modules}"),
            _ => modules,
        })
    }

    fn started(&self) -> Vec<(&'static str, f64)> {
        self.started.all.clone()
    }

    fn warm_up(&mut self) -> Result<(), DeviceError> {
        self.await_persistent();
        let mut ready = self.modules.ready();
        if self.launches != Launches::Ops {
            self.gpu.bind();
            self.stop();
            self.in_flight.forget();
            ready = ready.and_then(|()| graphs::prepare_drafts(self));
        }
        ready.map_err(|error| self.device_error((self.plan[0], error)))
    }

    fn dtype(&self) -> Dtype {
        Dtype::Bf16
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn run(&mut self, ops: &[Op], step: &Step<'_>) -> Result<(), DeviceError> {
        step.check(&self.config, &self.limits);
        self.gpu.bind();
        self.before_step(ops);
        self.in_flight.forget();
        self.logits.forget();
        if ops.is_empty() {
            return Ok(());
        }
        let done = self.run_step(ops, step).map_err(|failed| self.device_error(failed));
        self.after_step();
        done
    }

    fn decode(
        &mut self,
        ops: &[Op],
        step: &Step<'_>,
        samplers: &[Option<&Sampler>],
        ahead: usize,
    ) -> Result<(), DeviceError> {
        assert_eq!(samplers.len(), step.lanes.len(), "a sampler or none for each lane");
        step.check(&self.config, &self.limits);
        self.gpu.bind();
        self.before_step(ops);
        self.logits.forget();
        if ops.is_empty() {
            return Ok(());
        }
        // A launch that was stopped for another call does not publish the results of this one.
        if self.persistent.as_ref().is_some_and(Persistent::is_stopped) {
            self.in_flight.forget();
        }
        let launched = match self.in_flight.ask(step, samplers, |draw| self.sampling.serves(draw)) {
            Asked::Begun => self.begin_more(ahead),
            Asked::Anew(draws) => self.begin(ops, step, draws, ahead),
        };
        let done = launched.and_then(|()| {
            self.give_masks(step, samplers);
            self.wait()
        });
        self.after_step();
        done.map_err(|failed| {
            self.in_flight.forget();
            self.sampling.forget_adjustments();
            self.device_error(failed)
        })
    }

    fn chosen(&self, lane: usize, output: usize) -> Option<u32> {
        self.in_flight.chosen(lane, output)
    }

    fn logprobs(&self, lane: usize, output: usize) -> Option<Logprobs> {
        let (of, from) = ((lane, output), &self.sampling);
        self.in_flight.logprobs(&self.gpu, from, of).map(expect)
    }

    fn states(&mut self, ops: &[Op], step: &Step<'_>) -> Result<Vec<Vec<f32>>, DeviceError> {
        self.run(ops, step)?;
        self.read_states(step).map_err(|error| self.device_error((self.plan[0], error)))
    }

    fn logits(&self, output: usize) -> &[f32] {
        self.stop();
        expect(self.logits.row(output, &self.buffers.logits))
    }

    fn attention(&self, lane: usize, output: usize) -> Vec<f32> {
        let cells = self.lists.cells_of_output(lane, output);
        let (of, from) = ((lane, output), &self.sampling);
        let published = self.in_flight.shares(&self.gpu, from, of, cells.clone());
        let cells = expect(published.unwrap_or_else(|| self.cell_shares(cells)));
        shares(&self.lists.sum_stretches(lane, &cells))
    }

    fn kv_family(&self) -> String {
        let (major, minor) = self.gpu.facts.capability;
        let order = self.shape.order_of_sums();
        // Earlier versions summed rows in sections that began with each piece of a prompt, and then
        // against the largest score so far instead of a pivot.
        let experts = self.on_host.as_ref().map(OnHost::family);
        let experts = experts.map_or_else(String::new, |family| format!(", experts by {family}"));
        format!("CUDA (sm_{major}{minor}, bf16, sections by position, pivots, {order}{experts})")
    }

    fn read_kv(&self, layers: Range<u16>, rows: &PageRows<'_>, k: &mut [u8], v: &mut [u8]) {
        rows.check(&self.limits);
        self.stop();
        let read = expect(self.mover.read(layers, rows, k.len()));
        k.copy_from_slice(&read.k);
        v.copy_from_slice(&read.v);
    }

    fn write_kv(&mut self, rows: &PageRows<'_>, k: &[u8], v: &[u8]) {
        self.bring_kv(rows, Arc::new(HostRows { k: k.to_vec().into(), v: v.to_vec().into() }));
    }

    fn send_kv(
        &mut self,
        layers: Range<u16>,
        rows: &PageRows<'_>,
        bytes: usize,
    ) -> Receiver<HostRows> {
        rows.check(&self.limits);
        self.stop();
        expect(self.mover.send(layers, rows, bytes, false))
    }

    fn packs_rows(&self) -> bool {
        true
    }

    fn send_packed_kv(
        &mut self,
        n_layers: u16,
        rows: &PageRows<'_>,
        form: PackedRows,
    ) -> Receiver<HostRows> {
        expect(self.send_packed(n_layers, rows, form))
    }

    fn bring_packed_kv(&mut self, rows: &PageRows<'_>, from: Arc<HostRows>, form: PackedRows) {
        expect(self.bring(rows, from, Some(form)));
    }

    fn row_memory(&self) -> Arc<dyn RowMemory> {
        self.mover.memory()
    }

    fn bring_kv(&mut self, rows: &PageRows<'_>, from: Arc<HostRows>) {
        expect(self.bring(rows, from, None));
    }

    fn is_settled(&self, pages: &[PageId]) -> bool {
        self.mover.is_settled(pages)
    }

    fn starts_early(&self) -> bool {
        true
    }

    fn settle(&mut self, pages: &[PageId]) {
        expect(self.mover.settle(pages));
    }

    fn copy_rows(&mut self, from: PageId, to: PageId, rows: usize) {
        assert!(rows <= PAGE_ROWS, "{rows} rows of a page");
        assert!((from.max(to) as usize) < self.limits.pages, "page range");
        self.stop();
        expect(self.mover.order(&[from, to]));
        self.gpu.bind();
        expect(self.kv.copy_rows(&self.gpu, &self.kernels.copy_rows, from, to, rows));
    }
}

impl Inspect for CudaDevice {
    fn read(&self, buffer: Buffer) -> Vec<f32> {
        self.stop();
        expect(self.buffers.read(buffer, self.lists.counts.n_tokens))
    }

    fn write(&mut self, buffer: Buffer, values: &[f32]) {
        self.stop();
        expect(self.buffers.write(buffer, values));
    }

    fn kv_row(&self, layer: u16, slot: Slot) -> (Vec<f32>, Vec<f32>) {
        self.stop();
        expect(self.mover.order(&[place(slot).0]));
        expect(self.kv.read_row(layer, slot))
    }

    fn write_kv_row(&mut self, layer: u16, slot: Slot, k: &[f32], v: &[f32]) {
        self.stop();
        self.has_rows = true;
        expect(self.mover.order(&[place(slot).0]));
        expect(self.kv.write_row(layer, slot, k, v));
    }

    fn time_us(
        &mut self,
        ops: &[Op],
        step: &Step<'_>,
        repeats: usize,
    ) -> Option<Result<Vec<f64>, DeviceError>> {
        if self.on_host.is_some() {
            // The host's share cannot be left out.
            return None;
        }
        let first = *ops.first()?;
        let timed = self.replay_us(ops, step, repeats);
        Some(timed.map_err(|error| self.device_error((first, error))))
    }
}
