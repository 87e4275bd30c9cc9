//! Stores several entries at once, so that one wait for the disk serves them all.
//!
//! Each entry is written to a temporary file. All of these are synced together, then renamed, and
//! the folder is synced once. A reader sees a complete file or none, even after a power failure:
//! the content is on disk before the file gets its name.

use std::borrow::Cow;
use std::io;
use std::thread;

use super::index::file_of;
use super::put::{NewEntry, is_disk_full};
use super::temp::TempFile;
use super::{Header, HostRows, NotFinite, Put, Store, format, platform};

/// Maximum number of threads that sync files of one group. The file system's journal joins syncs
/// that run at the same time; one after the other, each would write the journal again.
const MOST_SYNCS: usize = 16;

/// Entries that are being stored.
struct Group<'a> {
    entries: &'a [NewEntry<'a>],
    /// The results so far.
    puts: Vec<Put>,
    written: Vec<Written<'a>>,
    /// Bytes of `written`.
    bytes: u64,
    /// Whether the index has the files of other processes, and their times of last use.
    is_fresh: bool,
    has_times: bool,
}

/// A temporary file with all bytes of an entry, not synced yet.
struct Written<'a> {
    /// Which entry.
    index: usize,
    /// The bytes before the rows.
    head: Vec<u8>,
    /// The rows as they are stored.
    rows: Cow<'a, HostRows>,
    temp: TempFile,
}

impl Store {
    /// Stores entries like [`put`](Self::put), one after the other, with few waits for the disk.
    /// All of them are on disk when this returns.
    ///
    /// # Panics
    /// If the length of `k` or `v` of an entry differs from its header's.
    pub fn put_all(&mut self, entries: &[NewEntry<'_>]) -> Vec<Put> {
        let puts = vec![Put::Off; entries.len()];
        let (written, bytes) = (Vec::new(), 0);
        let mut group = Group { entries, puts, written, bytes, is_fresh: false, has_times: false };
        for index in 0..entries.len() {
            if let Err(put) = self.add_to(&mut group, index) {
                group.puts[index] = put;
            }
        }
        self.commit(&mut group);
        group.puts
    }

    /// Writes an entry to a temporary file of the group. Returns the result if there is nothing to
    /// write.
    fn add_to(&mut self, group: &mut Group<'_>, index: usize) -> Result<(), Put> {
        let NewEntry { key, header, rows } = group.entries[index];
        if !header.is_stored(rows) {
            let full_bytes = header.full_bytes();
            assert_eq!(Some(rows.k.len()), full_bytes, "bytes of k");
            assert_eq!(Some(rows.v.len()), full_bytes, "bytes of v");
        }
        if self.is_off() {
            return Err(Put::Off);
        }
        if self.is_present(key, header) {
            return Err(Put::Present);
        }
        let rows = stored(header, rows).map_err(|NotFinite| Put::NotFinite)?;
        let payload_checksum = format::hash_rows(&rows).to_string();
        let head = format::encode(key, header, &payload_checksum);
        let head_bytes = head.as_ref().map_or(format::HEADER_LIMIT, |head| head.len() as u64);
        let bytes = head_bytes + 2 * rows.k.len() as u64;
        let budget_bytes = self.budget_bytes;
        let head = head.filter(|_| bytes <= budget_bytes);
        let head = head.ok_or(Put::TooLarge { bytes, budget_bytes })?;
        self.make_room(group, bytes)?;
        let temp = match self.write_temp(&[&head, &rows.k, &rows.v]) {
            // Evicts as much as needed, and tries once more.
            Err(error) if is_disk_full(&error) => {
                self.commit(group);
                self.evict(bytes);
                self.write_temp(&[&head, &rows.k, &rows.v])
            }
            temp => temp,
        };
        let temp = temp.map_err(|error| self.turn_off(&error))?;
        group.written.push(Written { index, head, rows, temp });
        group.bytes += bytes;
        Ok(())
    }

    /// Evicts until `bytes` fit the budget beside the group. If that is impossible, evicts nothing.
    fn make_room(&mut self, group: &mut Group<'_>, bytes: u64) -> Result<(), Put> {
        // Files of other processes count too.
        if !std::mem::replace(&mut group.is_fresh, true) {
            self.find_changes();
        }
        if self.missing(group, bytes) == 0 {
            return Ok(());
        }
        // Which entries go depends on their last use by any process.
        if !std::mem::replace(&mut group.has_times, true) {
            self.refresh();
        }
        if self.missing(group, bytes) > self.used_bytes() - self.pinned_bytes() {
            // Entries of the group have to go too.
            self.commit(group);
        }
        let pinned_bytes = self.pinned_bytes();
        if pinned_bytes + bytes > self.budget_bytes {
            return Err(Put::NoRoom { bytes, pinned_bytes });
        }
        self.evict(self.missing(group, bytes));
        Ok(())
    }

    /// Bytes that have to go so that `bytes` fit the budget beside the group.
    fn missing(&self, group: &Group<'_>, bytes: u64) -> u64 {
        (self.used_bytes() + group.bytes + bytes).saturating_sub(self.budget_bytes)
    }

    /// Syncs the group's temporary files and gives them their names.
    fn commit(&mut self, group: &mut Group<'_>) {
        group.bytes = 0;
        let written = std::mem::take(&mut group.written);
        let synced = sync_all(&written);
        let mut named = Vec::new();
        for (Written { index, head, rows, temp }, synced) in written.into_iter().zip(synced) {
            let to = file_of(&self.folder, group.entries[index].key);
            let is_named = match synced {
                Ok(()) => temp.rename(&to),
                // Some file systems find out only now. As above, evicts and tries once more.
                Err(error) if is_disk_full(&error) => {
                    drop(temp);
                    self.evict((head.len() + 2 * rows.k.len()) as u64);
                    let again = self.write_temp(&[&head, &rows.k, &rows.v]);
                    again.and_then(|temp| temp.file.sync_all().and_then(|()| temp.rename(&to)))
                }
                Err(error) => Err(error),
            };
            match is_named {
                Ok(()) => named.push(index),
                Err(error) => group.puts[index] = self.turn_off(&error),
            }
        }
        if named.is_empty() {
            return;
        }
        let synced = platform::sync_folder(&self.folder).map_err(|error| self.turn_off(&error));
        for index in named {
            group.puts[index] = match synced {
                Ok(()) => self.stored(group.entries[index].key),
                Err(off) => off,
            };
        }
    }
}

/// Rows as they are stored.
fn stored<'r>(header: &Header, rows: &'r HostRows) -> Result<Cow<'r, HostRows>, NotFinite> {
    Ok(header.stored(rows)?.map_or(Cow::Borrowed(rows), Cow::Owned))
}

/// Waits until the content of all files is on disk, several at a time.
fn sync_all(written: &[Written<'_>]) -> Vec<io::Result<()>> {
    let sync = |files: &[Written<'_>]| -> Vec<io::Result<()>> {
        files.iter().map(|file| file.temp.file.sync_all()).collect()
    };
    let share = written.len().div_ceil(MOST_SYNCS).max(1);
    let (own, others) = written.split_at(share.min(written.len()));
    thread::scope(|scope| {
        let others: Vec<_> =
            others.chunks(share).map(|files| scope.spawn(move || sync(files))).collect();
        let mut synced = sync(own);
        for other in others {
            synced.extend(other.join().expect("syncing does not panic"));
        }
        synced
    })
}
