//! libpcap's compiler of pcap-filter(7) expressions, where the machine has libpcap.
//!
//! The library is opened when an expression is to be compiled: whoever asks for none needs no
//! libpcap. Source: `pcap.h`, `pcap/bpf.h` of libpcap 1.10; their ABI is that of
//! `libpcap.so.0.8` (Debian) and `libpcap.so.1` (others).

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};

/// Names of the library.
const LIBRARIES: [&CStr; 2] = [c"libpcap.so.0.8", c"libpcap.so.1"];
/// `DLT_EN10MB`: Ethernet.
const ETHERNET: c_int = 1;
/// Longer packets than any.
const SNAP_LENGTH: c_int = 262_144;
/// No netmask is known: `ip broadcast` is an error.
const NETMASK_UNKNOWN: u32 = u32::MAX;

/// An instruction of classic BPF (`struct bpf_insn`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    /// What it does.
    pub code: u16,
    /// Instructions to leave out where its condition holds.
    pub when_true: u8,
    /// Instructions to leave out where it does not.
    pub when_false: u8,
    /// Its constant.
    pub k: u32,
}

const _: () = assert!(size_of::<Instruction>() == 8);

/// `struct bpf_program`.
#[repr(C)]
struct RawProgram {
    length: c_uint,
    instructions: *mut Instruction,
}

/// `struct pcap_pkthdr`.
#[repr(C)]
struct PacketHeader {
    time: libc::timeval,
    captured: u32,
    length: u32,
}

/// Why there is no program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LibpcapError {
    /// The machine has no libpcap, or one without a function that is needed.
    #[error("libpcap cannot be used: {0} (Debian: apt install libpcap0.8)")]
    Missing(String),
    /// libpcap cannot compile it, and says why.
    #[error("{0}")]
    Expression(String),
}

/// A compiled expression; libpcap made it, so that it is a valid program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    instructions: Vec<Instruction>,
}

type OpenDead = unsafe extern "C" fn(c_int, c_int) -> *mut c_void;
type Close = unsafe extern "C" fn(*mut c_void);
type Compile =
    unsafe extern "C" fn(*mut c_void, *mut RawProgram, *const c_char, c_int, u32) -> c_int;
type FreeCode = unsafe extern "C" fn(*mut RawProgram);
type GetError = unsafe extern "C" fn(*mut c_void) -> *mut c_char;
type OfflineFilter =
    unsafe extern "C" fn(*const RawProgram, *const PacketHeader, *const u8) -> c_int;

/// The library's functions. It is never closed again.
struct Libpcap {
    open_dead: OpenDead,
    close: Close,
    compile: Compile,
    free_code: FreeCode,
    get_error: GetError,
    offline_filter: OfflineFilter,
}

/// What the loader says of its last error.
fn loader_error() -> String {
    // SAFETY: dlerror answers null or a string that lives until this thread's next call of the
    // loader; it is copied before.
    let error = unsafe {
        let error = libc::dlerror();
        (!error.is_null()).then(|| CStr::from_ptr(error).to_string_lossy().into_owned())
    };
    error.unwrap_or_else(|| "no reason given".to_owned())
}

impl Libpcap {
    fn open() -> Result<Libpcap, LibpcapError> {
        let mut library: *mut c_void = std::ptr::null_mut();
        for name in LIBRARIES {
            if library.is_null() {
                // SAFETY: a string that ends with zero, and flags of dlfcn.h. libpcap's
                // initialisers do nothing but set its own variables.
                library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            }
        }
        if library.is_null() {
            return Err(LibpcapError::Missing(loader_error()));
        }
        let function = |name: &CStr| {
            // SAFETY: an open library, and a string that ends with zero.
            let function = unsafe { libc::dlsym(library, name.as_ptr()) };
            match function.is_null() {
                true => Err(LibpcapError::Missing(loader_error())),
                false => Ok(function),
            }
        };
        // SAFETY: the symbols are functions of these types in every libpcap of these names
        // (pcap.h).
        unsafe {
            Ok(Libpcap {
                open_dead: std::mem::transmute::<*mut c_void, OpenDead>(function(
                    c"pcap_open_dead",
                )?),
                close: std::mem::transmute::<*mut c_void, Close>(function(c"pcap_close")?),
                compile: std::mem::transmute::<*mut c_void, Compile>(function(c"pcap_compile")?),
                free_code: std::mem::transmute::<*mut c_void, FreeCode>(function(
                    c"pcap_freecode",
                )?),
                get_error: std::mem::transmute::<*mut c_void, GetError>(function(c"pcap_geterr")?),
                offline_filter: std::mem::transmute::<*mut c_void, OfflineFilter>(function(
                    c"pcap_offline_filter",
                )?),
            })
        }
    }
}

/// Compiles an expression for Ethernet frames.
///
/// # Errors
/// A machine without libpcap; an expression that is none, in libpcap's words.
pub fn compile(expression: &str) -> Result<Program, LibpcapError> {
    let text = CString::new(expression)
        .map_err(|_| LibpcapError::Expression("a zero byte in it".to_owned()))?;
    let libpcap = Libpcap::open()?;
    // SAFETY: the handle is checked before it is used, closed once, and not used afterwards.
    // libpcap fills the program, whose instructions are copied before they are freed.
    unsafe {
        let handle = (libpcap.open_dead)(ETHERNET, SNAP_LENGTH);
        if handle.is_null() {
            return Err(LibpcapError::Missing("pcap_open_dead: no memory".to_owned()));
        }
        let mut raw = RawProgram { length: 0, instructions: std::ptr::null_mut() };
        let answer = (libpcap.compile)(handle, &mut raw, text.as_ptr(), 1, NETMASK_UNKNOWN);
        let compiled = if answer == 0 && !raw.instructions.is_null() {
            let instructions = std::slice::from_raw_parts(raw.instructions, raw.length as usize);
            let instructions = instructions.to_vec();
            (libpcap.free_code)(&mut raw);
            Ok(Program { instructions })
        } else {
            let error = CStr::from_ptr((libpcap.get_error)(handle));
            Err(LibpcapError::Expression(error.to_string_lossy().into_owned()))
        };
        (libpcap.close)(handle);
        compiled
    }
}

impl Program {
    /// Its instructions.
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    /// Whether libpcap itself takes a packet of `length` bytes that begins with these for one
    /// that is meant.
    ///
    /// # Errors
    /// A machine without libpcap.
    pub fn matches(&self, bytes: &[u8], length: u32) -> Result<bool, LibpcapError> {
        let libpcap = Libpcap::open()?;
        let captured = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let header = PacketHeader {
            time: libc::timeval { tv_sec: 0, tv_usec: 0 },
            captured,
            length: length.max(captured),
        };
        let raw = RawProgram {
            // It came from a c_uint.
            length: self.instructions.len() as c_uint,
            instructions: self.instructions.as_ptr().cast_mut(),
        };
        // SAFETY: libpcap compiled the program, so that its jumps end and its memory is there;
        // it reads the program and at most `captured` bytes of the packet, and writes neither.
        Ok(unsafe { (libpcap.offline_filter)(&raw, &header, bytes.as_ptr()) } != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use test_support::require;

    #[test]
    fn an_expression_becomes_instructions() {
        require!(compile("").map_err(|error| error.to_string()));
        let program = compile("ip proto 17").unwrap();
        let codes: Vec<u16> = program.instructions().iter().map(|one| one.code).collect();
        // ldh, jeq, ldb, jeq, ret, ret.
        assert_eq!(codes, [0x28, 0x15, 0x30, 0x15, 0x06, 0x06]);
        let mut frame = [0; 34];
        (frame[12], frame[23]) = (8, 17);
        assert!(program.matches(&frame, 60).unwrap());
        assert!(!program.matches(&frame[..23], 60).unwrap());
        frame[23] = 6;
        assert!(!program.matches(&frame, 60).unwrap());
    }

    #[test]
    fn what_is_no_expression_is_refused_in_libpcaps_words() {
        require!(compile("").map_err(|error| error.to_string()));
        for (text, problem) in [
            ("tcp port", "syntax error"),
            ("host 10.1.0.300", "10.1.0.300"),
            ("ip broadcast", "netmask not known"),
            ("tcp\0", "a zero byte"),
        ] {
            let error = compile(text).unwrap_err();
            assert!(matches!(error, LibpcapError::Expression(_)), "{text}: {error:?}");
            assert!(error.to_string().contains(problem), "{text}: {error}");
        }
    }
}
