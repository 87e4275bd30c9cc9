//! Lets a process end while NVRTC compiles on other threads.
//!
//! The C library takes down a C++ library's objects when the process ends, and a compiler that still
//! used them would crash. So the end of the process stops compilers and waits for them. NVRTC makes
//! objects while it compiles, and would have them taken down before that wait could begin, since what
//! is registered last runs first: `keep_objects` has it register none of them. They live as long as
//! the process.

use std::ffi::{c_int, c_void};
use std::io::Write;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Compilers that run, and whether the process is ending.
static RUNNING: Mutex<(usize, bool)> = Mutex::new((0, false));
static ENDED: Condvar = Condvar::new();

/// How long the end of the process waits for compilers, at most. They look for the end a few times a
/// second, but not while they assign the registers of a kernel: up to some seconds, or longer if
/// other programs need the cores.
const END: Duration = Duration::from_secs(30);

/// How long a user who does not want to wait does wait for the output.
const FLUSH: Duration = Duration::from_millis(100);

/// A compiler that runs.
pub(crate) struct Running;

impl Running {
    /// None if the process is ending.
    pub(crate) fn begin() -> Option<Self> {
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        if running.1 {
            return None;
        }
        running.0 += 1;
        Some(Self)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        RUNNING.lock().unwrap_or_else(PoisonError::into_inner).0 -= 1;
        ENDED.notify_all();
    }
}

/// Whether the process is ending: compilers then stop.
pub(crate) fn is_ending() -> bool {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner).1
}

unsafe extern "C" {
    fn atexit(call: extern "C" fn()) -> c_int;
    fn _exit(status: c_int) -> !;
}

/// Makes the end of the process stop compilers and wait for them, before the objects that their
/// library has registered up to now are taken down. False if the process has gone too far for that.
pub(crate) fn wait_at_end() -> bool {
    // SAFETY: the function lives as long as the process, and running it twice does no harm.
    unsafe { atexit(end) == 0 }
}

extern "C" fn end() {
    let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    // It may be registered twice, and waits once.
    if !std::mem::replace(&mut running.1, true) {
        let _ = ENDED.wait_timeout_while(running, END, |running| running.0 > 0);
    }
}

/// Ends the process at once, with what was printed and without anything else that is done at an end:
/// whatever other threads load, compile or compute is left as it is. For a user who does not want to
/// wait.
pub fn leave(status: i32) -> ! {
    // The thread that holds the output may wait for a pipe that nobody reads.
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(std::io::stdout().flush().is_ok()));
    let _ = is_done.recv_timeout(FLUSH);
    // SAFETY: it takes a number and does not return.
    unsafe { _exit(status) }
}

/// What a library calls instead of `__cxa_atexit`: its objects are kept.
extern "C" fn keep(_: *mut c_void, _: *mut c_void, _: *mut c_void) -> c_int {
    0
}

/// Has the library that holds `inside` keep all objects that it makes from now on. False if that
/// library does not import the function that takes them down, as on other systems than Linux.
///
/// # Safety
/// `inside` is the address of a function of a library that is never closed, and no other thread is in
/// that library.
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
pub(crate) unsafe fn keep_objects(inside: *const c_void) -> bool {
    let mut found = Found { inside: inside as usize, slot: None };
    // SAFETY: the callback gets this structure back, while it lives.
    unsafe { libc::dl_iterate_phdr(Some(search), (&raw mut found).cast()) };
    let Some(slot) = found.slot else { return false };
    // SAFETY: the slot is a word of the library's table of imports, which the loader writes too: at
    // the first call of the function, or before, after which its page may be read only.
    unsafe {
        let page = libc::sysconf(libc::_SC_PAGESIZE) as usize;
        let start = (slot as usize / page * page) as *mut c_void;
        if libc::mprotect(start, page, libc::PROT_READ | libc::PROT_WRITE) != 0 {
            return false;
        }
        slot.write_volatile(keep as *const () as usize);
    }
    true
}

/// As above, on systems where NVRTC is not known to need it.
///
/// # Safety
/// None is needed.
#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
pub(crate) unsafe fn keep_objects(_: *const c_void) -> bool {
    false
}

#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
use elf::{Found, search};

/// Finds a library's import in memory, as the System V ABI lays it out.
#[cfg(all(target_os = "linux", target_pointer_width = "64"))]
mod elf {
    use std::ffi::{CStr, c_char, c_int, c_void};

    /// What is looked for, and where the address of its `__cxa_atexit` lies.
    pub(super) struct Found {
        pub(super) inside: usize,
        pub(super) slot: Option<*mut usize>,
    }

    const PT_DYNAMIC: u32 = 2;
    const DT_STRTAB: usize = 5;
    const DT_SYMTAB: usize = 6;
    const DT_JMPREL: usize = 23;
    const DT_PLTRELSZ: usize = 2;

    /// An import by name: where its address goes, the symbol (upper half) and the kind, an addend.
    #[repr(C)]
    struct Import {
        offset: usize,
        symbol_and_kind: u64,
        addend: i64,
    }

    /// The C library calls it for each library that is loaded; 1 ends the search.
    pub(super) unsafe extern "C" fn search(
        library: *mut libc::dl_phdr_info,
        _: usize,
        found: *mut c_void,
    ) -> c_int {
        // SAFETY: the caller gave `Found`, and the C library describes a library that stays loaded
        // during the call.
        unsafe {
            let (library, found) = (&*library, &mut *found.cast::<Found>());
            let base = library.dlpi_addr as usize;
            let parts = std::slice::from_raw_parts(library.dlpi_phdr, library.dlpi_phnum.into());
            let holds = |part: &libc::Elf64_Phdr| {
                let start = base + part.p_vaddr as usize;
                part.p_type == libc::PT_LOAD
                    && (start..start + part.p_memsz as usize).contains(&found.inside)
            };
            if !parts.iter().any(holds) {
                return 0;
            }
            let dynamic = parts.iter().find(|part| part.p_type == PT_DYNAMIC);
            found.slot = dynamic.and_then(|part| slot(base, base + part.p_vaddr as usize));
            1
        }
    }

    /// # Safety
    /// A library is loaded at `base`, and its dynamic section lies at `section`.
    unsafe fn slot(base: usize, section: usize) -> Option<*mut usize> {
        // SAFETY: the section is pairs of a tag and a value, ended by the tag 0; its tables lie
        // where it says, relative to the library unless the loader has added that already.
        unsafe {
            let value = |tag: usize| {
                let mut pair = section as *const [usize; 2];
                while (*pair)[0] != 0 {
                    if (*pair)[0] == tag {
                        return Some((*pair)[1]);
                    }
                    pair = pair.add(1);
                }
                None
            };
            let table = |tag| value(tag).map(|at| if at < base { base + at } else { at });
            let (names, symbols) = (table(DT_STRTAB)?, table(DT_SYMTAB)?);
            let n_imports = value(DT_PLTRELSZ)? / size_of::<Import>();
            let imports = table(DT_JMPREL)? as *const Import;
            let imports = std::slice::from_raw_parts(imports, n_imports);
            let import = imports.iter().find(|import| {
                let symbol = (import.symbol_and_kind >> 32) as usize;
                let symbol = (symbols as *const libc::Elf64_Sym).add(symbol);
                let name = (names + (*symbol).st_name as usize) as *const c_char;
                CStr::from_ptr(name) == c"__cxa_atexit"
            })?;
            Some((base + import.offset) as *mut usize)
        }
    }
}
