//! Expressions in pcap-filter syntax: which packets are wanted, decided in the kernel.
//!
//! libpcap compiles an expression to classic BPF, [`crate::classic`] makes eBPF of it. The
//! programs of `bpf/trace.bpf.c` call a function with room for 4096 instructions
//! (`bpf/expression.h`). Those of the expression are written over it, and how many they are into
//! its symbol, before libbpf sees the object: libbpf gives no access to functions that are no
//! programs. The kernel gets the bytes that the symbol has, and no more.
//!
//! Source of the object's format: elf(5); of what libbpf takes as a function:
//! `bpf_object__add_programs` of `libbpf.c`.

use sys::libpcap::{self, LibpcapError};

use crate::classic::{Extended, TranslateError, translate};

/// As `EXPRESSION_ROOM` of `bpf/expression.h`.
const ROOM: usize = 4096;
const BYTES: usize = 8;
/// The function's name in the object.
const NAME: &[u8] = b"expression\0";

/// Without an expression every packet is wanted.
const EVERY: [Extended; 2] = [
    Extended { code: 0xb7, to: 0, from: 0, offset: 0, immediate: 1 },
    Extended { code: 0x95, to: 0, from: 0, offset: 0, immediate: 0 },
];

/// Why an expression is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExpressionError {
    /// libpcap is missing, or says what is wrong.
    #[error(transparent)]
    Libpcap(#[from] LibpcapError),
    /// libpcap made something that nobody knows.
    #[error("{0}")]
    Program(String),
    /// It is too long.
    #[error("it becomes {got} instructions, expected {ROOM} at most")]
    Long {
        /// Instructions of eBPF that it becomes.
        got: usize,
    },
}

impl From<TranslateError> for ExpressionError {
    fn from(error: TranslateError) -> ExpressionError {
        ExpressionError::Program(error.to_string())
    }
}

/// An expression, compiled.
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
    /// `struct bpf_insn`.
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
    /// A machine without libpcap; what libpcap refuses; what becomes too long.
    pub fn compile(text: &str) -> Result<Expression, ExpressionError> {
        let function = translate(libpcap::compile(text)?.instructions())?;
        if function.len() > ROOM {
            return Err(ExpressionError::Long { got: function.len() });
        }
        Ok(Expression { text: text.to_owned(), function })
    }
}

/// The object with an expression in it; without one it wants every packet.
///
/// # Errors
/// An object without room for exactly one.
pub(crate) fn put_into(object: &[u8], expression: Option<&Expression>) -> Result<Vec<u8>, String> {
    let function = expression.map_or(&EVERY[..], |expression| &expression.function);
    let [room] = rooms(object).ok_or("the BPF object is no whole ELF file")?[..] else {
        return Err("the BPF object has not room for exactly one expression".to_owned());
    };
    let mut object = object.to_vec();
    let code: Vec<u8> = function.iter().flat_map(Extended::bytes).collect();
    let size = (code.len() as u64).to_ne_bytes();
    object[room.size_at..room.size_at + size.len()].copy_from_slice(&size);
    object[room.code_at..room.code_at + code.len()].copy_from_slice(&code);
    Ok(object)
}

/// Where the function is in the object's bytes.
#[derive(Debug, Clone, Copy)]
struct Room {
    /// The symbol's `st_size`.
    size_at: usize,
    /// Its first instruction.
    code_at: usize,
}

/// A field of a file in this machine's byte order, as objects of BPF are.
fn field<const SIZE: usize>(file: &[u8], at: usize) -> Option<usize> {
    let begin = if cfg!(target_endian = "little") { 0 } else { 8 - SIZE };
    let mut word = [0; 8];
    word[begin..begin + SIZE].copy_from_slice(file.get(at..at.checked_add(SIZE)?)?);
    usize::try_from(u64::from_ne_bytes(word)).ok()
}

/// Functions of the name that `bpf/expression.h` gives, with its room; `None`: no ELF file.
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
                object.get(code_at..code_at.checked_add(ROOM * BYTES)?)?;
                rooms.push(Room { size_at, code_at });
            }
        }
    }
    Some(rooms)
}

#[cfg(test)]
mod tests;
