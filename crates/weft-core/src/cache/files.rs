//! The threads that own the files: one writes and deletes, a few read.
//!
//! The engine's thread sends commands and never waits for one. Rows on their way to a file are
//! bounded in bytes; a caller with more asks again later. Files are written in groups: whatever has
//! arrived while the disk was busy goes to it together. Reads do not queue behind writes.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{io, thread};

use super::NodeId;
use super::news::{Awaited, News};
use crate::store::{
    Header, HostRows, KvKey, NewEntry, Put, Reader, RowMemory, Store, StoreStats, WasRead,
};

/// Bytes of rows that may wait for the disk. Larger rows wait alone.
const QUEUE_BYTES: u64 = 256 << 20;

/// Files, and bytes of rows, that one group has at most.
const GROUP_FILES: usize = 64;
const GROUP_BYTES: u64 = 64 << 20;

/// Threads that read. Several small files are read at once; a large one is read by several threads
/// in any case.
const READERS: usize = 4;

/// Warnings that nobody has taken yet, at most; the store bounds the others.
const MAX_WARNINGS: usize = 32;

/// How long the end of an engine waits for a write or a removal that has begun.
const END_WAIT: Duration = Duration::from_secs(2);

enum Command {
    Put(NewFile),
    Remove(KvKey),
    Pin(KvKey, bool),
    /// A reader's result.
    Note(WasRead),
    /// Replied to when all commands before it are done.
    Barrier(Sender<()>),
    End,
    #[cfg(test)]
    Call(Box<dyn FnOnce(&mut Store) + Send>),
}

/// Rows to file.
struct NewFile {
    key: KvKey,
    header: Header,
    rows: Arc<HostRows>,
    is_pinned: bool,
    receipt: Receipt,
}

impl NewFile {
    fn entry(&self) -> NewEntry<'_> {
        NewEntry { key: &self.key, header: &self.header, rows: &self.rows }
    }
}

/// Reports the end of a write, whatever happens to it.
struct Receipt {
    node: NodeId,
    bytes: u64,
    is_on_disk: bool,
    to: Sender<News>,
}

impl Drop for Receipt {
    fn drop(&mut self) {
        let Self { node, bytes, is_on_disk, .. } = *self;
        // The engine may be gone.
        let _ = self.to.send(News::Filed { node, bytes, is_on_disk });
    }
}

struct Read {
    key: KvKey,
    header: Header,
    room: Room,
    wanted: Wanted,
}

/// Where rows are read to.
pub(super) struct Room {
    /// What memory is taken from.
    pub(super) memory: Arc<dyn RowMemory>,
    /// Whether rows in 8 bits stay so.
    pub(super) packed: bool,
}

/// What a read is for.
enum Wanted {
    Rows(Awaited),
    /// The time that it takes.
    Time(Trial),
}

/// A read that only measures. Reports its end, whatever happens to it.
struct Trial {
    bytes: u64,
    /// None if there were no rows.
    time: Option<Duration>,
    to: Sender<News>,
}

impl Drop for Trial {
    fn drop(&mut self) {
        let read = self.time.map(|time| (self.bytes, time));
        // The engine may be gone.
        let _ = self.to.send(News::Tried { read });
    }
}

/// What the reading threads know of one another.
#[derive(Default)]
struct FileReading {
    /// Reads that were asked for and have not ended.
    n_reads: AtomicUsize,
    /// When the last one ended.
    last_end: Mutex<Option<Instant>>,
}

impl FileReading {
    /// Threads for one file: the fewer files are read at once, the more for each.
    fn n_threads(&self, n_cores: usize) -> usize {
        let n_files = self.n_reads.load(Ordering::Relaxed).clamp(1, READERS);
        n_cores.div_ceil(n_files)
    }

    /// Ends a read that began at `start`. Returns the time that it took the disk, not counting what
    /// other reads took meanwhile: the times of all reads add up to the time of all.
    fn end(&self, start: Instant, now: Instant) -> Duration {
        self.n_reads.fetch_sub(1, Ordering::Relaxed);
        let last_end = lock(&self.last_end).replace(now);
        now.saturating_duration_since(last_end.map_or(start, |last| last.max(start)))
    }
}

/// The state of the store, as last published.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) stats: StoreStats,
    pub(super) used_bytes: u64,
    pub(super) budget_bytes: u64,
    pub(super) warnings: Vec<String>,
}

impl Seen {
    fn update(&mut self, store: &mut Store) {
        self.stats = store.stats().clone();
        (self.used_bytes, self.budget_bytes) = (store.used_bytes(), store.budget_bytes());
        if self.warnings.len() < MAX_WARNINGS {
            self.warnings.extend(store.take_warnings());
        }
    }
}

/// The engine's side of the threads.
pub(super) struct Files {
    commands: Sender<Command>,
    reads: Sender<Read>,
    reading: Arc<FileReading>,
    seen: Arc<Mutex<Seen>>,
    news: Sender<News>,
    /// Bytes of rows that wait for the disk, or will; and how many may.
    queued_bytes: u64,
    most_bytes: u64,
    /// Set when the engine goes: rows that are still queued were promised to nobody.
    ending: Arc<AtomicBool>,
    /// Closed when the writing thread has ended.
    ended: Receiver<()>,
}

impl Files {
    /// Starts the threads.
    pub(super) fn start(mut store: Store, news: Sender<News>) -> io::Result<Self> {
        let (commands, writes) = channel();
        let (reads, to_read) = channel();
        let (end, ended) = channel::<()>();
        let seen = Arc::new(Mutex::new(Seen::default()));
        lock(&seen).update(&mut store);
        let ending = Arc::new(AtomicBool::new(false));
        let to_read = Arc::new(Mutex::new(to_read));
        let reading = Arc::new(FileReading::default());
        for n in 0..READERS {
            let (reader, reads, notes) = (store.reader(), Arc::clone(&to_read), commands.clone());
            let reading = Arc::clone(&reading);
            let name = format!("weft-read-{n}");
            thread::Builder::new()
                .name(name)
                .spawn(move || read_all(&reader, &reads, &reading, &notes))?;
        }
        let mut writer =
            Writer { store, seen: Arc::clone(&seen), ending: Arc::clone(&ending), files: vec![] };
        thread::Builder::new().name("weft-files".to_owned()).spawn(move || {
            let _end = end;
            writer.run(&writes);
        })?;
        Ok(Self {
            commands,
            reads,
            reading,
            seen,
            news,
            queued_bytes: 0,
            most_bytes: QUEUE_BYTES,
            ending,
            ended,
        })
    }

    /// Whether rows can be queued now.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        self.queued_bytes == 0 || self.queued_bytes + bytes <= self.most_bytes
    }

    /// Whether rows wait for the disk.
    pub(super) fn is_busy(&self) -> bool {
        self.queued_bytes > 0
    }

    /// Takes room in the queue for rows that will be put.
    pub(super) fn reserve(&mut self, bytes: u64) {
        self.queued_bytes += bytes;
    }

    /// Gives the room back, once the rows are filed or will not be.
    pub(super) fn release(&mut self, bytes: u64) {
        self.queued_bytes -= bytes;
    }

    /// Queues rows of `bytes` bytes, whose room is reserved.
    pub(super) fn put(
        &self,
        node: NodeId,
        bytes: u64,
        (key, header): (KvKey, Header),
        rows: Arc<HostRows>,
        is_pinned: bool,
    ) {
        let receipt = Receipt { node, bytes, is_on_disk: false, to: self.news.clone() };
        self.send(Command::Put(NewFile { key, header, rows, is_pinned, receipt }));
    }

    /// Reads the file of a key.
    pub(super) fn read(&self, (key, header): (KvKey, Header), room: Room, awaited: Awaited) {
        self.ask(Read { key, header, room, wanted: Wanted::Rows(awaited) });
    }

    /// Reads the file of a key, which has so many bytes of rows, to measure the disk.
    pub(super) fn try_reading(&self, (key, header): (KvKey, Header), room: Room, bytes: u64) {
        let trial = Trial { bytes, time: None, to: self.news.clone() };
        self.ask(Read { key, header, room, wanted: Wanted::Time(trial) });
    }

    fn ask(&self, read: Read) {
        self.reading.n_reads.fetch_add(1, Ordering::Relaxed);
        // If the threads are gone, dropping it reports that there are no rows.
        let _ = self.reads.send(read);
    }

    pub(super) fn remove(&self, key: KvKey) {
        self.send(Command::Remove(key));
    }

    pub(super) fn pin(&self, key: KvKey, is_pinned: bool) {
        self.send(Command::Pin(key, is_pinned));
    }

    /// Waits until all commands up to now are done.
    pub(super) fn wait(&self) {
        let (done, is_done) = channel();
        self.send(Command::Barrier(done));
        let _ = is_done.recv();
    }

    /// The state of the store, after the commands that are done.
    pub(super) fn seen(&self) -> MutexGuard<'_, Seen> {
        lock(&self.seen)
    }

    fn send(&self, command: Command) {
        // If the thread is gone, dropping a command reports its failure.
        let _ = self.commands.send(command);
    }

    /// Changes how many bytes may wait for the disk.
    #[cfg(test)]
    pub(super) fn set_most_bytes(&mut self, bytes: u64) {
        self.most_bytes = bytes;
    }

    /// Calls a function on the store, after the commands before.
    #[cfg(test)]
    pub(super) fn with_store<T: Send + 'static>(
        &self,
        function: impl FnOnce(&mut Store) -> T + Send + 'static,
    ) -> T {
        let (sender, result) = channel();
        self.send(Command::Call(Box::new(move |store| sender.send(function(store)).unwrap())));
        result.recv().unwrap()
    }
}

/// Rows that are still queued are dropped; removals are carried out.
impl Drop for Files {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::Relaxed);
        self.send(Command::End);
        // A disk that stalls must not keep the process: a cut write leaves nothing wrong.
        let _ = self.ended.recv_timeout(END_WAIT);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn read_all(
    reader: &Reader,
    reads: &Mutex<Receiver<Read>>,
    reading: &FileReading,
    notes: &Sender<Command>,
) {
    let n_cores = thread::available_parallelism().map_or(1, usize::from);
    loop {
        let Ok(Read { key, header, room, wanted }) = lock(reads).recv() else { return };
        let start = Instant::now();
        if matches!(&wanted, Wanted::Rows(awaited) if !awaited.is_wanted()) {
            reading.n_reads.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let n_threads = reading.n_threads(n_cores);
        let Room { memory, packed } = room;
        let (rows, was_read) = reader.read_to(&key, &header, &*memory, n_threads, packed);
        // Sent first: a damaged file is gone before its rows are computed and filed again.
        let _ = notes.send(Command::Note(was_read));
        let time = reading.end(start, Instant::now());
        match wanted {
            Wanted::Rows(awaited) => awaited.deliver(rows, time),
            Wanted::Time(mut trial) => trial.time = rows.map(|_| time),
        }
    }
}

/// The thread that owns the store.
struct Writer {
    store: Store,
    seen: Arc<Mutex<Seen>>,
    ending: Arc<AtomicBool>,
    /// The next group.
    files: Vec<NewFile>,
}

impl Writer {
    fn run(&mut self, commands: &Receiver<Command>) {
        while let Ok(command) = commands.recv() {
            let mut next = Some(command);
            while let Some(command) = next {
                if let Command::End = command {
                    return self.publish();
                }
                self.handle(command);
                next = commands.try_recv().ok();
            }
            self.write();
            self.publish();
        }
    }

    fn handle(&mut self, command: Command) {
        match command {
            Command::Put(file) => {
                self.files.push(file);
                let bytes: u64 = self.files.iter().map(|file| file.receipt.bytes).sum();
                if self.files.len() >= GROUP_FILES || bytes >= GROUP_BYTES {
                    self.write();
                }
            }
            Command::Remove(key) => {
                if self.files.iter().any(|file| file.key == key) {
                    self.write();
                }
                self.store.remove(&key);
            }
            Command::Pin(key, true) => self.store.pin(&key),
            Command::Pin(key, false) => self.store.unpin(&key),
            Command::Note(was_read) => self.store.note(was_read),
            Command::Barrier(done) => {
                self.write();
                self.publish();
                // Who waited may be gone.
                let _ = done.send(());
            }
            Command::End => unreachable!("it ends the loop"),
            #[cfg(test)]
            Command::Call(function) => {
                self.write();
                function(&mut self.store);
            }
        }
    }

    /// Writes the group, and reports its files when all of them are on disk.
    fn write(&mut self) {
        let mut files = std::mem::take(&mut self.files);
        if files.is_empty() || self.ending.load(Ordering::Relaxed) {
            return;
        }
        for file in files.iter().filter(|file| file.is_pinned) {
            self.store.pin(&file.key);
        }
        let entries: Vec<NewEntry<'_>> = files.iter().map(NewFile::entry).collect();
        let puts = self.store.put_all(&entries);
        self.publish();
        for (file, put) in files.iter_mut().zip(puts) {
            file.receipt.is_on_disk = matches!(put, Put::Stored | Put::Present);
        }
    }

    /// Makes counts and warnings visible before anybody hears of their cause.
    fn publish(&mut self) {
        lock(&self.seen).update(&mut self.store);
    }
}
