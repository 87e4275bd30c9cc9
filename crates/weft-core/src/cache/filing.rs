//! Rows on their way to files, beside steps.
//!
//! A node whose rows are to be filed waits until the queue has room. Then its rows are copied out
//! of the device's pages, unless main memory has them, and handed to the thread that writes.
//! Nothing here waits for the disk, except [`Cache::flush`] and [`Cache::save`], which say so. If
//! the queue is full, rows that have to leave memory now are dropped and counted.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Duration;

use super::files::Files;
use super::news::News;
use super::node::{InRam, receive};
use super::{Cache, Node, NodeId};
use crate::chunk::Tier;
use crate::device::Device;
use crate::store::{Header, HostRows, KvKey};

/// How long a flush waits for news at a time.
const NEWS_WAIT: Duration = Duration::from_millis(100);

/// How far rows are on their way to a file.
#[derive(Debug)]
pub(super) enum Filing {
    /// They wait for room in the queue, or for their copy in main memory.
    Wanted,
    /// They are being copied out of the device's pages, and have room in the queue.
    Coming(Receiver<HostRows>),
    /// They wait for the disk.
    Queued(Arc<HostRows>),
}

/// Rows that are on their way to files together.
#[derive(Debug)]
pub struct Saving(Vec<NodeId>);

impl Cache {
    /// Starts to file the rows of nodes, which stay where they are.
    pub(crate) fn begin_save(
        &mut self,
        device: &mut dyn Device,
        which: impl Fn(&Node) -> bool,
    ) -> Saving {
        if self.files.is_none() {
            return Saving(Vec::new());
        }
        let is_new = |node: &Node| node.is_public && node.is_filled() && !node.on_disk;
        let chosen: Vec<NodeId> =
            self.nodes.iter().filter(|(_, n)| is_new(n) && which(n)).map(|(id, _)| *id).collect();
        for id in &chosen {
            let node = self.node_mut(*id);
            if node.filing.is_none() {
                node.filing = Some(Filing::Wanted);
                self.to_file.push_back(*id);
            }
        }
        self.hand_over(device, false);
        Saving(chosen)
    }

    /// Whether some of the rows are still on their way.
    pub(crate) fn is_saving(&self, saving: &Saving) -> bool {
        let is_on_its_way = |id| self.nodes.get(id).is_some_and(|node| node.filing.is_some());
        saving.0.iter().any(is_on_its_way)
    }

    /// Whether any rows are on their way to files.
    pub(crate) fn is_filing(&self) -> bool {
        !self.to_file.is_empty() || self.files.as_ref().is_some_and(Files::is_busy)
    }

    /// Files rows like [`Cache::begin_save`] and waits until all files are on disk. Returns the
    /// number of nodes with a file.
    pub(crate) fn save(&mut self, device: &mut dyn Device, which: impl Fn(&Node) -> bool) -> usize {
        self.begin_save(device, &which);
        self.flush(device);
        self.n_filed(which)
    }

    /// Number of nodes with a file.
    pub(crate) fn n_filed(&self, which: impl Fn(&Node) -> bool) -> usize {
        let is_filed = |node: &&Node| node.is_public && node.on_disk && which(node);
        self.nodes.values().filter(is_filed).count()
    }

    /// Waits until no rows are on their way to files, and all removals are done.
    pub(crate) fn flush(&mut self, device: &mut dyn Device) {
        loop {
            self.hear(device);
            self.hand_over(device, true);
            if !self.is_filing() {
                break;
            }
            self.wait_for_news(NEWS_WAIT, device);
        }
        if let Some(files) = &self.files {
            files.wait();
        }
        self.hear(device);
    }

    /// Takes what has come from outside, and hands over what is ready. Waits for nothing.
    pub(crate) fn tend(&mut self, device: &mut dyn Device) {
        self.hear(device);
        self.hand_over(device, false);
    }

    fn hear(&mut self, device: &mut dyn Device) {
        while let Ok(news) = self.news.from.try_recv() {
            self.hear_one(news, device);
        }
    }

    /// Waits a while for news.
    pub(crate) fn wait_for_news(&mut self, time: Duration, device: &mut dyn Device) {
        if let Ok(news) = self.news.from.recv_timeout(time) {
            self.hear_one(news, device);
            self.hear(device);
        }
    }

    fn hear_one(&mut self, news: News, device: &mut dyn Device) {
        match news {
            News::Filed { node, bytes, is_on_disk } => self.filed(node, bytes, is_on_disk),
            News::Tried { read } => self.speeds.count_trial(Tier::Disk, read),
            News::Arrived(arrival) => self.arrived(arrival, device),
        }
    }

    fn filed(&mut self, id: NodeId, bytes: u64, is_on_disk: bool) {
        self.files.as_mut().expect("they have filed it").release(bytes);
        let Some(node) = self.nodes.get_mut(&id) else { return };
        // Otherwise it was forgotten meanwhile, and its file will be removed.
        if let Some(Filing::Queued(_)) = node.filing {
            node.filing = None;
            node.on_disk = is_on_disk;
            self.drop_if_nowhere(id);
        }
    }

    /// Advances wanted rows as far as possible. `waits` is whether to wait for the device's copies.
    fn hand_over(&mut self, device: &mut dyn Device, waits: bool) {
        for id in std::mem::take(&mut self.to_file) {
            if !self.hand_over_node(id, device, waits) {
                self.to_file.push_back(id);
            }
        }
    }

    /// Returns whether nothing is left to do here.
    fn hand_over_node(&mut self, id: NodeId, device: &mut dyn Device, waits: bool) -> bool {
        if let Some(Node { filing: Some(Filing::Wanted), .. }) = self.nodes.get(&id)
            && !self.begin_filing(id, device, waits)
        {
            return false;
        }
        let Some(node) = self.nodes.get_mut(&id) else { return true };
        let Some(Filing::Coming(coming)) = &node.filing else { return true };
        match receive(coming, waits) {
            Ok(rows) => self.queue(id, Arc::new(rows)),
            Err(TryRecvError::Empty) => return false,
            Err(TryRecvError::Disconnected) => {
                self.stop_filing(id);
                self.drop_if_nowhere(id);
            }
        }
        true
    }

    /// Gives a wanted node room in the queue. Returns false if it has to wait.
    fn begin_filing(&mut self, id: NodeId, device: &mut dyn Device, waits: bool) -> bool {
        let bytes = self.shape.node_bytes(self.node(id));
        if !self.has_room(bytes) {
            return false;
        }
        match self.rows_in_ram(id, waits) {
            // Both need the rows: it is waited for until main memory has them.
            Some(Err(TryRecvError::Empty)) => false,
            Some(Err(TryRecvError::Disconnected)) => {
                self.drop_if_nowhere(id);
                true
            }
            Some(Ok(rows)) => {
                self.reserve(bytes);
                self.queue(id, rows);
                true
            }
            None => {
                let coming = self.send(id, device);
                self.reserve(bytes);
                self.node_mut(id).filing = Some(Filing::Coming(coming));
                true
            }
        }
    }

    /// Rows that leave memory now go to a file, if there is one to go to and room in the queue.
    /// Returns false if they are lost.
    pub(super) fn file_leaving(&mut self, id: NodeId, rows: InRam) -> bool {
        let bytes = self.shape.node_bytes(self.node(id));
        if self.files.is_none() {
            return false;
        }
        if !self.has_room(bytes) {
            self.stop_filing(id);
            self.stats.unfiled += 1;
            return false;
        }
        self.reserve(bytes);
        match rows {
            InRam::There(rows) => self.queue(id, rows),
            InRam::Coming(coming) => {
                let before = self.node_mut(id).filing.replace(Filing::Coming(coming));
                if before.is_none() {
                    self.to_file.push_back(id);
                }
            }
        }
        true
    }

    /// Whether rows that leave memory now would find room on their way to a file.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        self.files.as_ref().is_some_and(|files| files.has_room(bytes))
    }

    pub(super) fn reserve(&mut self, bytes: u64) {
        self.files.as_mut().expect("it has room").reserve(bytes);
    }

    /// Hands rows to the thread that writes. Their room is reserved.
    pub(super) fn queue(&mut self, id: NodeId, rows: Arc<HostRows>) {
        self.share(id, &rows);
        let (bytes, file) = (self.shape.node_bytes(self.node(id)), self.file_of(id));
        let is_pinned = self.node(id).pinned;
        let files = self.files.as_ref().expect("it has room");
        files.put(id, bytes, file, Arc::clone(&rows), is_pinned);
        self.node_mut(id).filing = Some(Filing::Queued(rows));
    }

    /// Forgets that rows are on their way. Those that are queued already are written all the same.
    pub(super) fn stop_filing(&mut self, id: NodeId) {
        let bytes = self.shape.node_bytes(self.node(id));
        if let Some(Filing::Coming(_)) = self.node_mut(id).filing.take()
            && let Some(files) = &mut self.files
        {
            files.release(bytes);
        }
    }

    /// Changes how many bytes of rows may wait for the disk.
    #[cfg(test)]
    pub(crate) fn set_most_queued(&mut self, bytes: u64) {
        self.files.as_mut().unwrap().set_most_bytes(bytes);
    }

    /// The key and header of a node's file.
    pub(super) fn file_of(&self, id: NodeId) -> (KvKey, Header) {
        let node = self.node(id);
        let header = Header {
            fingerprint: self.fingerprint.clone(),
            dtype: self.shape.dtype,
            form: node.form,
            layers: self.shape.layers,
            kv_width: self.shape.kv_width,
            // Full rows are exact for the context that they attended to. Only a prompt uses them
            // approximately.
            reuse: node.form.reuse().to_owned(),
            parent: node.parent,
            home_position: node.home,
            tokens: node.tokens.clone(),
            prefill_us: u64::try_from(node.cost.as_micros()).unwrap_or(u64::MAX),
        };
        (Self::key_of(node), header)
    }
}
