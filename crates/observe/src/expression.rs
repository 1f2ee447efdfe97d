//! Filter expressions in pcap-filter syntax, evaluated in the kernel.
//!
//! libpcap compiles an expression to classic BPF, and [`crate::classic`] translates that to eBPF.
//! The programs of `bpf/trace.bpf.c` call a function with room for 4096 instructions
//! (`bpf/expression.h`). Before libbpf sees the object, the instructions of the expression replace
//! the function's code, and its symbol gets their length, because libbpf gives no access to
//! functions that are not programs. The kernel gets only as many bytes as the symbol states.
//!
//! Sources: elf(5) for the object's format; `bpf_object__add_programs` of `libbpf.c` for what
//! libbpf takes as a function.

use sys::libpcap::{self, LibpcapError};

use crate::classic::{Extended, TranslateError, translate};

/// Same as `EXPRESSION_ROOM` of `bpf/expression.h`.
const ROOM: usize = 4096;
const BYTES: usize = 8;
/// The function's name in the object.
const NAME: &[u8] = b"expression\0";

/// Without an expression, every packet matches.
const EVERY: [Extended; 2] = [
    Extended { code: 0xb7, to: 0, from: 0, offset: 0, immediate: 1 },
    Extended { code: 0x95, to: 0, from: 0, offset: 0, immediate: 0 },
];

/// Errors of compiling an expression.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExpressionError {
    /// libpcap is missing or rejects the expression.
    #[error(transparent)]
    Libpcap(#[from] LibpcapError),
    /// libpcap generated code that cannot be translated.
    #[error("{0}")]
    Program(String),
    /// The expression becomes too long.
    #[error("the expression compiles to {got} instructions, expected {ROOM} at most")]
    Long {
        /// Number of eBPF instructions.
        got: usize,
    },
}

impl From<TranslateError> for ExpressionError {
    fn from(error: TranslateError) -> ExpressionError {
        ExpressionError::Program(error.to_string())
    }
}

#[derive(Clone, PartialEq, Eq)]
pub struct Expression {
    text: String,
    function: Vec<Extended>,
}

impl std::fmt::Debug for Expression {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Expression").field(&self.text).finish()
    }
}

impl Extended {
    /// Serializes it as `struct bpf_insn`.
    fn bytes(&self) -> [u8; BYTES] {
        let registers = match cfg!(target_endian = "little") {
            true => self.from << 4 | self.to,
            false => self.to << 4 | self.from,
        };
        let (offset, immediate) = (self.offset.to_ne_bytes(), self.immediate.to_ne_bytes());
        let [a, b, c, d] = immediate;
        [self.code, registers, offset[0], offset[1], a, b, c, d]
    }
}

impl Expression {
    /// Compiles an expression for Ethernet frames.
    ///
    /// # Errors
    /// If libpcap is missing or rejects the expression, or the program becomes too long.
    pub fn compile(text: &str) -> Result<Expression, ExpressionError> {
        let function = translate(libpcap::compile(text)?.instructions())?;
        // The object reserves room for a function of fixed size.
        if function.len() > ROOM {
            return Err(ExpressionError::Long { got: function.len() });
        }
        Ok(Expression { text: text.to_owned(), function })
    }
}

/// Returns the object with an expression in it; `None` matches every packet.
///
/// # Errors
/// If the object does not have room for exactly one expression.
pub(crate) fn put_into(object: &[u8], expression: Option<&Expression>) -> Result<Vec<u8>, String> {
    let function = expression.map_or(&EVERY[..], |expression| &expression.function);
    let [room] = rooms(object).ok_or("the BPF object is not a complete ELF file")?[..] else {
        return Err("the BPF object does not have room for exactly one expression".to_owned());
    };
    let mut object = object.to_vec();
    let code: Vec<u8> = function.iter().flat_map(Extended::bytes).collect();
    let size = (code.len() as u64).to_ne_bytes();
    object[room.size_at..room.size_at + size.len()].copy_from_slice(&size);
    object[room.code_at..room.code_at + code.len()].copy_from_slice(&code);
    Ok(object)
}

/// Location of the function in the object's bytes.
#[derive(Debug, Clone, Copy)]
struct Room {
    /// Offset of the symbol's `st_size`.
    size_at: usize,
    /// Offset of its first instruction.
    code_at: usize,
}

/// Reads a field in this machine's byte order, which BPF objects use.
fn field<const SIZE: usize>(file: &[u8], at: usize) -> Option<usize> {
    let begin = if cfg!(target_endian = "little") { 0 } else { 8 - SIZE };
    let mut word = [0; 8];
    word[begin..begin + SIZE].copy_from_slice(file.get(at..at.checked_add(SIZE)?)?);
    usize::try_from(u64::from_ne_bytes(word)).ok()
}

/// Finds functions with the name and room that `bpf/expression.h` gives; `None`: not an ELF file.
fn rooms(object: &[u8]) -> Option<Vec<Room>> {
    // ELFCLASS64.
    if !object.starts_with(b"\x7fELF\x02") {
        return None;
    }
    // Elf64_Ehdr: e_shoff, e_shentsize, e_shnum.
    let (sections, each) = (field::<8>(object, 40)?, field::<2>(object, 58)?);
    let section = |index: usize| sections.checked_add(index.checked_mul(each)?);
    // Elf64_Shdr: sh_type, sh_offset, sh_size, sh_link.
    let offset = |index| field::<8>(object, section(index)? + 24);
    let mut rooms = Vec::new();
    for index in 0..field::<2>(object, 60)? {
        const SHT_SYMTAB: usize = 2;
        let header = section(index)?;
        // Only symbol tables name the placeholder functions.
        if field::<4>(object, header + 4)? != SHT_SYMTAB {
            continue;
        }
        let (symbols, size) = (offset(index)?, field::<8>(object, header + 32)?);
        let names = offset(field::<4>(object, header + 40)?)?;
        // Elf64_Sym: st_name, st_shndx, st_value, st_size.
        for symbol in (symbols..symbols.checked_add(size)?).step_by(24) {
            let name = names.checked_add(field::<4>(object, symbol)?)?;
            let size_at = symbol + 16;
            if object.get(name..)?.starts_with(NAME) && field::<8>(object, size_at)? >= ROOM * BYTES
            {
                let code = offset(field::<2>(object, symbol + 6)?)?;
                let code_at = code.checked_add(field::<8>(object, symbol + 8)?)?;
                // Refuse a room that is not within the file.
                object.get(code_at..code_at.checked_add(ROOM * BYTES)?)?;
                rooms.push(Room { size_at, code_at });
            }
        }
    }
    Some(rooms)
}

#[cfg(test)]
mod tests;
