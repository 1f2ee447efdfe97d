//! The compiler of libpcap for pcap-filter(7) expressions, if libpcap is installed.
//!
//! The library is opened only when an expression must be compiled, so programs without expressions
//! do not need libpcap. Source: `pcap.h`, `pcap/bpf.h` of libpcap 1.10; the ABI is that of
//! `libpcap.so.0.8` (Debian) and `libpcap.so.1` (other distributions).
//!
//! A static program cannot open a library. It runs `tcpdump -ddd` instead, which prints the
//! compiled expression.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::process::{Command, Stdio};

/// File names of the library.
const LIBRARIES: [&CStr; 2] = [c"libpcap.so.0.8", c"libpcap.so.1"];
/// `DLT_EN10MB`: Ethernet.
const ETHERNET: c_int = 1;
/// Longer than any packet.
const SNAP_LENGTH: c_int = 262_144;
/// The netmask is unknown, so `ip broadcast` is an error.
const NETMASK_UNKNOWN: u32 = u32::MAX;

/// An instruction of classic BPF (`struct bpf_insn`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Instruction {
    pub code: u16,
    /// Number of instructions to skip if the condition is true.
    pub when_true: u8,
    /// Number of instructions to skip if the condition is false.
    pub when_false: u8,
    /// The constant operand.
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

/// Why there is no compiled program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LibpcapError {
    /// libpcap, or a required function of it, is missing.
    #[error("libpcap cannot be used: {0} (Debian: apt install libpcap0.8)")]
    Missing(String),
    /// A static program needs tcpdump, which cannot be run or prints something unexpected.
    #[error("an expression needs the program tcpdump, which {0} (Debian, Fedora: install tcpdump)")]
    Tcpdump(String),
    /// libpcap cannot compile the expression, with its reason.
    #[error("{0}")]
    Expression(String),
}

/// A compiled expression. It was created by libpcap, or by a tcpdump that root installed, and is
/// therefore a valid program.
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

/// Functions of the library, which is never closed.
struct Libpcap {
    open_dead: OpenDead,
    close: Close,
    compile: Compile,
    free_code: FreeCode,
    get_error: GetError,
    offline_filter: OfflineFilter,
}

fn loader_error() -> String {
    // SAFETY: dlerror returns null or a string that is valid until the next loader call of this
    // thread; it is copied before that.
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
                // SAFETY: a string that ends with a zero byte, and flags of dlfcn.h. The
                // initialisers of libpcap only set its own variables.
                library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            }
        }
        if library.is_null() {
            return Err(LibpcapError::Missing(loader_error()));
        }
        let function = |name: &CStr| {
            // SAFETY: an open library, and a string that ends with a zero byte.
            let function = unsafe { libc::dlsym(library, name.as_ptr()) };
            match function.is_null() {
                true => Err(LibpcapError::Missing(loader_error())),
                false => Ok(function),
            }
        };
        // SAFETY: the symbols are functions of these types in all libpcap versions with these names
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
/// If libpcap is missing, or the expression is invalid, with the message of libpcap.
pub fn compile(expression: &str) -> Result<Program, LibpcapError> {
    let text = CString::new(expression)
        .map_err(|_| LibpcapError::Expression("it contains a zero byte".to_owned()))?;
    if cfg!(target_feature = "crt-static") {
        return by_tcpdump(expression);
    }
    let libpcap = Libpcap::open()?;
    // SAFETY: the handle is checked before use, closed once, and not used afterwards. libpcap fills
    // the program, whose instructions are copied before they are freed.
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

/// Has tcpdump compile an expression. It opens no device, because the link type is given.
fn by_tcpdump(expression: &str) -> Result<Program, LibpcapError> {
    let failed = |reason: String| LibpcapError::Tcpdump(reason);
    let snap_length = SNAP_LENGTH.to_string();
    let ended = Command::new("tcpdump")
        .args(["-y", "EN10MB", "-s", &snap_length, "-ddd", "--", expression])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed(format!("cannot be run: {error}")))?;
    if !ended.status.success() {
        let text = String::from_utf8_lossy(&ended.stderr);
        let text = text.trim().trim_start_matches("tcpdump: ");
        return Err(LibpcapError::Expression(text.to_owned()));
    }
    let text = String::from_utf8_lossy(&ended.stdout);
    parse(&text).ok_or_else(|| failed("prints no program".to_owned()))
}

/// Reads the output of `tcpdump -ddd`: the number of instructions, then one in each line.
fn parse(text: &str) -> Option<Program> {
    let mut lines = text.lines();
    let count: usize = lines.next()?.parse().ok()?;
    let instruction = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let instruction = Instruction {
            code: words.next()?.parse().ok()?,
            when_true: words.next()?.parse().ok()?,
            when_false: words.next()?.parse().ok()?,
            k: words.next()?.parse().ok()?,
        };
        words.next().is_none().then_some(instruction)
    };
    let instructions: Vec<Instruction> = lines.map(instruction).collect::<Option<_>>()?;
    (count > 0 && instructions.len() == count).then_some(Program { instructions })
}

impl Program {
    pub fn instructions(&self) -> &[Instruction] {
        &self.instructions
    }

    /// Returns whether libpcap itself matches a packet of `length` bytes that starts with `bytes`.
    ///
    /// # Errors
    /// If libpcap is missing.
    pub fn matches(&self, bytes: &[u8], length: u32) -> Result<bool, LibpcapError> {
        let libpcap = Libpcap::open()?;
        let captured = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let header = PacketHeader {
            time: libc::timeval { tv_sec: 0, tv_usec: 0 },
            captured,
            length: length.max(captured),
        };
        let raw = RawProgram {
            // The value was a c_uint.
            length: self.instructions.len() as c_uint,
            instructions: self.instructions.as_ptr().cast_mut(),
        };
        // SAFETY: libpcap compiled the program, so its jumps terminate and its memory accesses are
        // valid. It reads the program and at most `captured` bytes of the packet, and writes
        // neither.
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

    /// A static program has no libpcap.
    #[test]
    fn tcpdump_compiles_the_same() {
        require!(compile("").map_err(|error| error.to_string()));
        require!(test_support::need::tool("tcpdump"));
        for expression in ["", "ip proto 17", "-v or host", "tcp[13] & 2 != 0", "host 10.1.0.300"] {
            assert_eq!(by_tcpdump(expression).ok(), compile(expression).ok(), "{expression}");
        }
        let error = by_tcpdump("tcp port").unwrap_err();
        assert!(matches!(&error, LibpcapError::Expression(text) if text.contains("syntax error")));
    }

    #[test]
    fn other_output_of_tcpdump_is_no_program() {
        let program = parse("1\n6 0 0 262144\n").unwrap();
        let accept = Instruction { code: 6, when_true: 0, when_false: 0, k: 262_144 };
        assert_eq!(program.instructions(), [accept]);
        for text in ["", "0\n", "2\n6 0 0 1\n", "1\n6 0 0\n", "1\n6 0 0 1 1\n", "1\n6 256 0 1\n"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn invalid_expressions_are_refused_in_libpcaps_words() {
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
