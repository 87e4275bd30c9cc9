//! Compiles kernel sources to a cubin with NVRTC and caches it on disk.
//!
//! A cubin's name is the hash of everything it depends on: sources, options and the compiler's
//! version. A damaged file is compiled again, and so is one in a folder that other users can write
//! to; a cache that cannot be written is not an error. This file does not know what the kernels
//! compute.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use cudarc::nvrtc::{result, sys};
use sha2::{Digest, Sha256};
use weft_core::files::{read_private, write_private};

use crate::error::CudaError;
use crate::process_end::{self, Running, is_ending, wait_at_end};

/// Sources of kernels.
#[derive(Clone, Debug)]
pub struct Program {
    /// The source to compile.
    pub source: String,
    /// The files it includes: each file's name, as in `#include`, and its text.
    pub files: Vec<(String, String)>,
}

/// The compiler's output, and its report on registers and spills of each kernel.
pub struct Compiled {
    /// The machine code; for a virtual architecture (`compute_80`) its assembly, ended by a zero,
    /// which the driver translates when it is loaded.
    pub cubin: Vec<u8>,
    /// The compiler's report; empty if the cubin came from the cache.
    pub report: String,
}

/// Options besides the architecture. Multiplications and additions are fused only where the source
/// says so, because two kernels must round alike.
const OPTIONS: [&str; 4] = ["-std=c++17", "-fmad=false", "-default-device", "--ptxas-options=-v"];

/// All options.
fn options(arch: &str) -> Vec<String> {
    let arch = format!("--gpu-architecture={arch}");
    std::iter::once(arch).chain(OPTIONS.map(str::to_owned)).collect()
}

/// The compiler's version; if there is no compiler, the error says how to install it.
pub(crate) fn version() -> Result<(i32, i32), CudaError> {
    // Opening and closing a library of this size takes long enough to do it once.
    static FOUND: Mutex<Option<(i32, i32)>> = Mutex::new(None);
    let mut found = FOUND.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(version) = *found {
        return Ok(version);
    }
    let ending = || CudaError::Unavailable(ENDING.to_owned());
    // Once before anything of the library is there, and once before what it makes when it is loaded
    // is taken down.
    let _running = wait_at_end().then(Running::begin).flatten().ok_or_else(ending)?;
    let version = find()?;
    if !wait_at_end() {
        return Err(ending());
    }
    *found = Some(version);
    Ok(version)
}

fn find() -> Result<(i32, i32), CudaError> {
    let missing = || {
        CudaError::Unavailable(
            "libnvrtc was not found; install the CUDA toolkit, or `pip install nvidia-cuda-nvrtc` \
             and put its folder on LD_LIBRARY_PATH"
                .to_owned(),
        )
    };
    // SAFETY: opens and closes the library by name, nothing else.
    if !unsafe { sys::is_culib_present() } {
        return Err(missing());
    }
    let asked = catch_unwind(|| {
        keep_objects();
        let (mut major, mut minor) = (0, 0);
        // SAFETY: writes two integers.
        let asked = unsafe { sys::nvrtcVersion(&mut major, &mut minor) };
        asked.result().map(|()| (major, minor))
    });
    asked.map_err(|_| missing())?.map_err(|_| missing())
}

/// Loads the library, and has it keep what it makes while it compiles until the process has ended.
fn keep_objects() {
    // SAFETY: the library stays loaded, and no other thread has a function of it before it has the
    // version, which this thread is asking for.
    unsafe {
        if let Ok(inside) = sys::culib().get::<unsafe extern "C" fn()>(b"nvrtcVersion\0") {
            process_end::keep_objects(*inside as *const c_void);
        }
    }
}

/// The name of a cubin: a hash of everything that it depends on.
fn key(program: &Program, options: &[String], version: (i32, i32)) -> String {
    let mut hash = Sha256::new();
    let mut add = |part: &str| {
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    };
    add(&program.source);
    for (name, text) in &program.files {
        add(name);
        add(text);
    }
    add(&format!("{}.{}", version.0, version.1));
    options.iter().for_each(|option| add(option));
    hex(&hash.finalize())
}

/// The name of the cubin of a program for an architecture, by the compiler that is installed.
pub fn cubin_name(program: &Program, arch: &str) -> Result<String, CudaError> {
    Ok(key(program, &options(arch), version()?))
}

/// Where the cache has a file.
pub(crate) fn entry(name: &str) -> Option<PathBuf> {
    cache_folder().map(|folder| folder.join(name))
}

/// Compiles for an architecture.
pub fn compile(program: &Program, arch: &str) -> Result<Compiled, CudaError> {
    version()?;
    let failed = |log: String| CudaError::Compile { arch: arch.to_owned(), log };
    let c_string =
        |text: &str| CString::new(text).map_err(|_| failed("a zero byte in the source".to_owned()));
    let source = c_string(&program.source)?;
    let files = program.files.iter().map(|(name, text)| Ok((c_string(name)?, c_string(text)?)));
    let files: Vec<(CString, CString)> = files.collect::<Result<_, CudaError>>()?;
    let _running = Running::begin().ok_or_else(|| failed(ENDING.to_owned()))?;
    let program = create(&source, &files).map_err(|error| failed(error.to_string()))?;
    // SAFETY: the program was just made, and is destroyed once, at the end.
    unsafe {
        watch(program);
        let compiled = result::compile_program(program, &options(arch));
        let report = result::get_program_log(program).unwrap_or_default();
        let report: Vec<u8> = report.iter().map(|c| *c as u8).take_while(|c| *c != 0).collect();
        let report = String::from_utf8_lossy(&report).into_owned();
        let cubin = compiled.and_then(|()| take_code(program, arch.starts_with("compute_")));
        let _ = result::destroy_program(program);
        let cubin = cubin.map_err(|error| failed(format!("{error}: {report}")))?;
        Ok(Compiled { cubin, report })
    }
}

const ENDING: &str = "the process is ending";

/// The library calls it while it compiles: whether to stop.
extern "C" fn stops(_: *mut c_void, _: *mut c_void) -> c_int {
    c_int::from(is_ending())
}

/// Has the library ask `stops` while it compiles. Earlier ones do not ask; then the end of the
/// process waits until they are done.
///
/// # Safety
/// The program was made and not yet destroyed.
unsafe fn watch(program: sys::nvrtcProgram) {
    type Callback = extern "C" fn(*mut c_void, *mut c_void) -> c_int;
    type Set = unsafe extern "C" fn(sys::nvrtcProgram, Callback, *mut c_void) -> c_int;
    // SAFETY: the library's function of that name has this type.
    unsafe {
        if let Ok(set) = sys::culib().get::<Set>(b"nvrtcSetFlowCallback\0") {
            set(program, stops, std::ptr::null_mut());
        }
    }
}

/// A program whose includes are found by name. NVRTC copies all texts.
fn create(
    source: &CStr,
    files: &[(CString, CString)],
) -> Result<sys::nvrtcProgram, result::NvrtcError> {
    let names: Vec<*const c_char> = files.iter().map(|(name, _)| name.as_ptr()).collect();
    let texts: Vec<*const c_char> = files.iter().map(|(_, text)| text.as_ptr()).collect();
    let mut program = std::ptr::null_mut();
    // SAFETY: as many names and texts as `files` has, each ended by a zero, and all live until the
    // call returns.
    unsafe {
        let (n, texts, names) = (files.len() as i32, texts.as_ptr(), names.as_ptr());
        let name = c"weft.cu".as_ptr();
        sys::nvrtcCreateProgram(&mut program, source.as_ptr(), name, n, texts, names).result()?;
    }
    Ok(program)
}

/// # Safety
/// The program was compiled and not yet destroyed.
unsafe fn take_code(
    program: sys::nvrtcProgram,
    is_virtual: bool,
) -> Result<Vec<u8>, result::NvrtcError> {
    let (size, take) = if is_virtual {
        (sys::nvrtcGetPTXSize as Size, sys::nvrtcGetPTX as Take)
    } else {
        (sys::nvrtcGetCUBINSize as Size, sys::nvrtcGetCUBIN as Take)
    };
    let mut len = 0;
    // SAFETY: writes one integer; then as many bytes as it said.
    unsafe {
        size(program, &mut len).result()?;
        let mut code = vec![0_u8; len];
        take(program, code.as_mut_ptr().cast()).result()?;
        Ok(code)
    }
}

type Size = unsafe fn(sys::nvrtcProgram, *mut usize) -> sys::nvrtcResult;
type Take = unsafe fn(sys::nvrtcProgram, *mut c_char) -> sys::nvrtcResult;

/// `$WEFT_KERNEL_CACHE`, or the system's folder for caches.
fn cache_folder() -> Option<PathBuf> {
    let from = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    from("WEFT_KERNEL_CACHE").map(PathBuf::from).or_else(|| {
        let cache = from("XDG_CACHE_HOME").map(PathBuf::from);
        let cache = cache.or_else(|| Some(PathBuf::from(from("HOME")?).join(".cache")))?;
        Some(cache.join("weft").join("kernels"))
    })
}

/// No cubin is as large.
const MAX_ENTRY_BYTES: u64 = 256 << 20;

/// An entry is the hash of the cubin, then the cubin.
pub(crate) fn read_entry(path: &Path) -> Option<Vec<u8>> {
    let entry = read_private(path, MAX_ENTRY_BYTES).ok()??;
    let (hash, cubin) = entry.split_at_checked(32)?;
    (Sha256::digest(cubin).as_slice() == hash).then(|| cubin.to_vec())
}

pub(crate) fn write_entry(path: &Path, cubin: &[u8]) -> std::io::Result<()> {
    write_private(path, &[&Sha256::digest(cubin), cubin])
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cubin_s_name_depends_on_every_byte() {
        let file = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        let program =
            Program { source: "source".to_owned(), files: vec![file("a", "bc"), file("d", "e")] };
        let key_of = |program: &Program, arch| key(program, &options(arch), (13, 0));
        let same = key_of(&program, "sm_90a");
        let with = |source: &str, files: Vec<(String, String)>| {
            key_of(&Program { source: source.to_owned(), files }, "sm_90a")
        };
        assert_eq!(with("source", program.files.clone()), same);
        let others = [
            with("sourcf", program.files.clone()),
            with("source", vec![file("a", "bc"), file("d", "f")]),
            with("source", vec![file("ab", "c"), file("d", "e")]),
            with("source", vec![file("a", "bc")]),
            key_of(&program, "sm_80"),
            key(&program, &options("sm_90a"), (13, 1)),
        ];
        assert!(others.iter().all(|other| *other != same));
    }

    #[test]
    fn a_damaged_entry_is_no_entry() {
        let folder = std::env::temp_dir().join(format!("weft-cubin-{}", std::process::id()));
        let path = folder.join("a.cubin");
        write_entry(&path, b"machine code").unwrap();
        assert_eq!(read_entry(&path).unwrap(), b"machine code");
        let mut entry = std::fs::read(&path).unwrap();
        *entry.last_mut().unwrap() ^= 1;
        std::fs::write(&path, &entry).unwrap();
        assert_eq!(read_entry(&path), None);
        std::fs::write(&path, &entry[..20]).unwrap();
        assert_eq!(read_entry(&path), None);
        assert_eq!(read_entry(&folder.join("absent.cubin")), None);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!((mode(&folder), mode(&path)), (0o700, 0o600));
            write_entry(&path, b"machine code").unwrap();
            let link = folder.join("link.cubin");
            std::os::unix::fs::symlink(&path, &link).unwrap();
            assert_eq!(read_entry(&link), None, "a link is not followed");
            std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o777)).unwrap();
            assert_eq!(read_entry(&path), None, "others can write here");
            assert!(write_entry(&path, b"machine code").is_err());
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
