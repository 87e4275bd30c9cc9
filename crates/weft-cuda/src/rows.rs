//! Copies rows between KV pages and the host, concurrently with steps.
//!
//! A separate thread issues the copies, one job after the other, in streams of copies. Events keep the
//! order that data requires: a copy runs after all earlier work of the GPU, and a step runs after the
//! copies to its pages and after the copies from pages that it writes to.

mod carrier;
mod pieces;
mod pool;
mod stage;
pub(crate) use carrier::layout;
pub(crate) use pieces::PIECE_PAGES;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::thread::{self, JoinHandle};

use weft_core::config::Config;
use weft_core::device::{Lane, PageRows, Span, Step};
use weft_core::kv::{PAGE_ROWS, PageId, Slot};
use weft_core::store::{HostRows, PackedRows, RowMemory};

use self::carrier::Carrier;
pub(crate) use self::carrier::bytes;
use self::pool::{Lender, RowPool};
use crate::CudaDevice;
use crate::driver::{COPY_STREAMS, Done, Gpu, Memory, Stream};
use crate::error::CudaError;
use crate::kernels::Kernels;
use crate::kv::Kv;

/// What the thread that copies is told.
enum Message {
    Copy(Job),
    /// Somebody waits for all copies that have been asked for.
    Now,
}

/// Rows to copy.
struct Job {
    layers: Range<u16>,
    /// Row range within the copy's pages, counted from row 0 of the first page.
    rows: Range<usize>,
    /// Whether the lists are in 8 bits.
    packed: bool,
    way: Way,
    copy: Arc<Copy>,
}

/// Where rows go; both lists are \[layers\]\[rows\]\[kv_width\], or \[layers\]\[rows\] in 8 bits.
enum Way {
    In(Arc<HostRows>),
    /// With the bytes of each list.
    Out(usize, Sender<HostRows>),
}

/// A copy that was started.
struct Copy {
    pages: Vec<PageId>,
    /// Whether it writes into its pages.
    comes_in: bool,
    /// The GPU's earlier work: steps may still use the copy's pages.
    ready: Done,
    /// Its end on the GPU, once it is known, and the ends of its layers if it comes in.
    over: Done,
    layers: OnceLock<Arc<LayerEnds>>,
    reported: Mutex<Option<Result<(), String>>>,
    is_reported: Condvar,
}

/// When the layers of copies are there: all before the given one, once every stream has come to
/// its point.
pub(crate) struct LayerEnds(Vec<(u16, [Done; COPY_STREAMS])>);

impl LayerEnds {
    /// The point that a layer waits for, counted from the first; none if it waits for nothing.
    pub(crate) fn of(&self, layer: u16) -> Option<usize> {
        self.0.iter().position(|(end, _)| layer < *end)
    }

    /// Makes later steps wait for a point.
    pub(crate) fn order(&self, gpu: &Gpu, point: usize) -> Result<(), CudaError> {
        self.0[point].1.iter().try_for_each(|done| gpu.order(Stream::Compute, done))
    }
}

impl Copy {
    fn new(gpu: &Arc<Gpu>, pages: &[PageId], comes_in: bool) -> Result<Self, CudaError> {
        Ok(Self {
            pages: pages.to_vec(),
            comes_in,
            ready: Done::new(gpu)?,
            over: Done::new(gpu)?,
            layers: OnceLock::new(),
            reported: Mutex::new(None),
            is_reported: Condvar::new(),
        })
    }

    /// Reports that the whole copy has been submitted to the GPU, or why it has not.
    fn report(&self, result: &Result<(), CudaError>) {
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        *reported = Some(match result {
            Ok(()) => Ok(()),
            Err(error) => Err(error.to_string()),
        });
        self.is_reported.notify_all();
    }

    /// Whether the whole copy has been submitted to the GPU, or will not be.
    fn is_asked(&self) -> bool {
        self.reported.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Waits until the whole copy has been submitted to the GPU.
    fn asked(&self) -> Result<(), CudaError> {
        let reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        let reported = self.is_reported.wait_while(reported, |reported| reported.is_none());
        let failed = |reason| CudaError::Driver { call: "copying rows", reason };
        reported.unwrap_or_else(PoisonError::into_inner).clone().unwrap_or(Ok(())).map_err(failed)
    }

    fn is_over(&self) -> bool {
        let reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        // A failed copy keeps its error for the caller that waits for it.
        matches!(*reported, Some(Ok(()))) && self.over.is_over()
    }

    fn has_failed(&self) -> bool {
        matches!(*self.reported.lock().unwrap_or_else(PoisonError::into_inner), Some(Err(_)))
    }

    fn is_at(&self, pages: &[PageId]) -> bool {
        self.pages.iter().any(|page| pages.contains(page))
    }

    fn is_in_way_of(&self, step: &Step<'_>) -> bool {
        is_in_way(&self.pages, self.comes_in, step)
    }
}

/// Whether a step must wait for a copy into or out of pages: both may read a page, but none may
/// while it is written.
fn is_in_way(pages: &[PageId], comes_in: bool, step: &Step<'_>) -> bool {
    let stores = |slot: &Slot| pages.contains(&(slot / PAGE_ROWS as Slot));
    let reads = |span: &Span| span.pages.iter().any(|page| pages.contains(page));
    let meets = |lane: &Lane<'_>| {
        comes_in && lane.spans.iter().any(reads) || lane.store_at.iter().any(stores)
    };
    step.lanes.iter().any(meets)
}

/// Copies rows into and out of pages.
pub(crate) struct Mover {
    gpu: Arc<Gpu>,
    /// None once it is closed.
    messages: Option<Sender<Message>>,
    thread: Option<JoinHandle<()>>,
    /// Copies that may not be done, in the order of their jobs.
    begun: RefCell<VecDeque<Arc<Copy>>>,
    pool: Arc<RowPool>,
}

impl Mover {
    /// Creates it for pages that live until it is closed.
    pub(crate) fn new(
        gpu: &Arc<Gpu>,
        config: &Config,
        kernels: &Kernels,
        kv: &Kv,
    ) -> Result<Self, CudaError> {
        let pool = RowPool::new(gpu);
        let carrier = Carrier::new(gpu, config, kernels, kv, &pool)?;
        let (messages, receiver) = channel();
        let carry = move || carrier.carry(&receiver);
        let thread = thread::Builder::new().name("weft-rows".to_owned()).spawn(carry);
        let thread = thread.map_err(|error| CudaError::Driver {
            call: "starting a thread",
            reason: error.to_string(),
        })?;
        let begun = RefCell::default();
        let (gpu, messages) = (Arc::clone(gpu), Some(messages));
        Ok(Self { gpu, messages, thread: Some(thread), begun, pool })
    }

    /// Finishes all started copies; afterwards nothing uses the pages.
    pub(crate) fn close(&mut self) {
        self.messages = None;
        if let Some(thread) = self.thread.take() {
            // The thread has already reported the error to whoever waits for it.
            let _ = thread.join();
        }
    }

    /// Memory for rows that will be brought.
    pub(crate) fn memory(&self) -> Arc<dyn RowMemory> {
        Arc::new(Lender(Arc::clone(&self.pool)))
    }

    /// Starts to write rows into pages.
    pub(crate) fn bring(
        &self,
        layers: Range<u16>,
        rows: &PageRows<'_>,
        from: Arc<HostRows>,
        packed: bool,
    ) -> Result<(), CudaError> {
        self.begin(layers, rows, packed, Way::In(from)).map(|_| ())
    }

    /// Starts to read rows from pages.
    pub(crate) fn send(
        &self,
        layers: Range<u16>,
        rows: &PageRows<'_>,
        bytes: usize,
        packed: bool,
    ) -> Result<Receiver<HostRows>, CudaError> {
        let (sender, receiver) = channel();
        self.begin(layers, rows, packed, Way::Out(bytes, sender))?;
        Ok(receiver)
    }

    /// Reads rows from pages.
    pub(crate) fn read(
        &self,
        layers: Range<u16>,
        rows: &PageRows<'_>,
        bytes: usize,
    ) -> Result<HostRows, CudaError> {
        let (sender, receiver) = channel();
        let copy = self.begin(layers, rows, false, Way::Out(bytes, sender))?;
        self.await_asked(&copy)?;
        Ok(receiver.recv().expect("rows are sent before the end is reported"))
    }

    fn begin(
        &self,
        layers: Range<u16>,
        rows: &PageRows<'_>,
        packed: bool,
        way: Way,
    ) -> Result<Arc<Copy>, CudaError> {
        self.gpu.bind();
        let comes_in = matches!(way, Way::In(_));
        let copy = Arc::new(Copy::new(&self.gpu, &rows.pages[..rows.n_pages()], comes_in)?);
        copy.ready.record(Stream::Compute)?;
        self.forget_ended();
        self.begun.borrow_mut().push_back(Arc::clone(&copy));
        let of_pages = rows.first_row..rows.first_row + rows.len;
        let job = Job { layers, rows: of_pages, packed, way, copy: Arc::clone(&copy) };
        if !self.tell(Message::Copy(job)) {
            let reason = "its thread has ended".to_owned();
            copy.report(&Err(CudaError::Driver { call: "carrying rows", reason }));
        }
        Ok(copy)
    }

    /// Returns whether the thread will hear it.
    fn tell(&self, message: Message) -> bool {
        let messages = self.messages.as_ref().expect("a mover that is not closed");
        messages.send(message).is_ok()
    }

    /// Waits until a copy, with all before it, has been submitted to the GPU.
    fn await_asked(&self, copy: &Copy) -> Result<(), CudaError> {
        if !copy.is_asked() {
            // Without the thread, the copy has been reported as failed.
            self.tell(Message::Now);
        }
        copy.asked()
    }

    /// Forgets copies that are done.
    fn forget_ended(&self) {
        self.begun.borrow_mut().retain(|copy| !copy.is_over());
    }

    /// Whether no copy uses these pages. A failed copy counts as done here; the next step that
    /// needs it reports the error.
    pub(crate) fn is_settled(&self, pages: &[PageId]) -> bool {
        self.gpu.bind();
        self.forget_ended();
        !self.begun.borrow().iter().any(|copy| copy.is_at(pages) && !copy.has_failed())
    }

    /// Waits until no copy uses these pages.
    pub(crate) fn settle(&self, pages: &[PageId]) -> Result<(), CudaError> {
        self.gpu.bind();
        // They end in the order they began.
        if let Some(last) = self.begun.borrow().iter().rfind(|copy| copy.is_at(pages)) {
            self.await_asked(last)?;
            last.over.wait()?;
        }
        self.forget_ended();
        Ok(())
    }

    /// Makes later work of the GPU wait for the copies that use these pages.
    pub(crate) fn order(&self, pages: &[PageId]) -> Result<(), CudaError> {
        self.order_after(|copy| copy.is_at(pages))
    }

    /// The same for the pages of a step. If `by_layers`, work of a layer has to be made to wait for
    /// it by what is returned.
    pub(crate) fn order_step(
        &self,
        step: &Step<'_>,
        by_layers: bool,
    ) -> Result<Option<Arc<LayerEnds>>, CudaError> {
        let Some(last) = self.last(|copy| copy.is_in_way_of(step))? else { return Ok(None) };
        // Copies that began before it have ended when its first layer begins.
        if let Some(layers) = last.layers.get().filter(|_| by_layers) {
            return Ok(Some(Arc::clone(layers)));
        }
        self.gpu.order(Stream::Compute, &last.over).map(|()| None)
    }

    fn order_after(&self, is_in_way: impl Fn(&Copy) -> bool) -> Result<(), CudaError> {
        let last = self.last(is_in_way)?;
        last.map_or(Ok(()), |last| self.gpu.order(Stream::Compute, &last.over))
    }

    /// The last copy in the way of something, once it has been submitted to the GPU.
    fn last(&self, is_in_way: impl Fn(&Copy) -> bool) -> Result<Option<Arc<Copy>>, CudaError> {
        if self.begun.borrow().is_empty() {
            return Ok(None);
        }
        self.gpu.bind();
        self.forget_ended();
        // They end in the order they began.
        let last = self.begun.borrow().iter().rfind(|copy| is_in_way(copy)).cloned();
        last.map(|last| self.await_asked(&last).map(|()| last)).transpose()
    }
}

impl CudaDevice {
    /// Starts to write rows into pages, from lists that may be in 8 bits.
    pub(crate) fn bring(
        &mut self,
        rows: &PageRows<'_>,
        from: Arc<HostRows>,
        packed: Option<PackedRows>,
    ) -> Result<(), CudaError> {
        rows.check(&self.limits);
        packed.into_iter().for_each(|form| self.check_packed(form));
        self.stop();
        self.has_rows = true;
        self.mover.bring(0..self.config.layers as u16, rows, from, packed.is_some())
    }

    /// Starts to read rows from pages, to lists in 8 bits.
    pub(crate) fn send_packed(
        &mut self,
        n_layers: u16,
        rows: &PageRows<'_>,
        form: PackedRows,
    ) -> Result<Receiver<HostRows>, CudaError> {
        rows.check(&self.limits);
        self.check_packed(form);
        self.stop();
        let bytes = usize::from(n_layers) * rows.len * form.row_bytes();
        self.mover.send(0..n_layers, rows, bytes, true)
    }

    /// A copy of pages, once all that writes to them is done.
    pub(crate) fn save_pages(&self, pages: &[PageId]) -> Result<Memory, CudaError> {
        self.mover.order(pages)?;
        self.gpu.bind();
        self.kv.save(&self.gpu, pages)
    }

    /// Puts such a copy back.
    pub(crate) fn restore_pages(&self, pages: &[PageId], saved: &Memory) -> Result<(), CudaError> {
        self.gpu.bind();
        self.kv.restore(&self.gpu, pages, saved)
    }

    /// Kernels pack rows with a scale for each head.
    fn check_packed(&self, form: PackedRows) {
        let own = PackedRows { kv_width: self.config.kv_width(), group: self.config.head_dim };
        assert_eq!(form, own, "the form of packed rows");
    }
}

#[cfg(test)]
mod tests {
    use weft_testing::{Work, span};

    use super::*;

    #[test]
    fn steps_read_pages_while_they_leave_and_not_while_they_come() {
        let copied = [16, 17, 18, 19];
        let in_way =
            |comes_in, work: &Work| is_in_way(&copied, comes_in, &Step { lanes: &[work.lane()] });
        let reads = Work::new(&[5], 0, vec![span(16, 256, 0)], span(64, 64, 256));
        assert!(in_way(true, &reads) && !in_way(false, &reads));
        let writes = Work::new(&[5], 255, vec![], span(16, 256, 0));
        assert!(in_way(true, &writes) && in_way(false, &writes));
        let elsewhere = Work::new(&[5], 0, vec![span(20, 256, 0)], span(64, 64, 256));
        assert!(!in_way(true, &elsewhere) && !in_way(false, &elsewhere));
    }
}
