//! Expressions in pcap-filter syntax: which packets are wanted, decided in the kernel.
//!
//! libpcap compiles an expression to classic BPF, [`crate::classic`] makes eBPF of it. The
//! programs of `bpf/trace.bpf.c` call a function with room for 4096 instructions
//! (`bpf/expression.h`), over which those of the expression are written before libbpf sees the
//! object: libbpf gives no access to functions that are no programs.

use sys::libpcap::{self, LibpcapError};

use crate::classic::{Extended, TranslateError, translate};

/// As `EXPRESSION_ROOM` of `bpf/expression.h`.
const ROOM: usize = 4096;
/// Between the marks, and the marks with the end of the function.
const ALL: usize = ROOM + 4;
/// Instructions that jump over what is left of the room.
const JUMP: usize = 2;
const BYTES: usize = 8;
/// Longest function.
const MOST: usize = ALL - JUMP;

/// A jump to the next instruction.
const NOTHING: Extended = Extended { code: 0x05, to: 0, from: 0, offset: 0, immediate: 0 };
/// What the function's register is set to, at its beginning and its end.
const MARKS: [i32; 2] = [0x6f76_6c31, 0x6f76_6c32];
const EXIT: Extended = Extended { code: 0x95, to: 0, from: 0, offset: 0, immediate: 0 };

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
    #[error("it becomes {got} instructions, expected {MOST} at most")]
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
        if function.len() > MOST {
            return Err(ExpressionError::Long { got: function.len() });
        }
        Ok(Expression { text: text.to_owned(), function })
    }

    /// The object with the expression in it.
    ///
    /// # Errors
    /// An object without room for exactly one.
    pub(crate) fn put_into(&self, object: &[u8]) -> Result<Vec<u8>, String> {
        let room = room();
        // Code is aligned in an object.
        let at = |(at, bytes): (usize, &[u8])| (bytes == room).then_some(at * BYTES);
        let windows = object.windows(ALL * BYTES).step_by(BYTES).enumerate();
        let places: Vec<usize> = windows.filter_map(at).collect();
        let [place] = places[..] else {
            return Err(format!(
                "the BPF object has room for {} expressions, expected one",
                places.len()
            ));
        };
        let mut object = object.to_vec();
        // What is left of the room comes first: the function ends with its last instruction.
        let left = MOST - self.function.len();
        let offset = i16::try_from(left).map_err(|_| "the room is larger than a jump")?;
        let over = [
            Extended { code: 0xb4, immediate: 0, ..NOTHING },
            Extended { code: 0x15, immediate: 0, offset, ..NOTHING },
        ];
        let before = over.iter().chain(std::iter::repeat_n(&NOTHING, left));
        let all = before.chain(&self.function).flat_map(Extended::bytes);
        object[place..place + ALL * BYTES].iter_mut().zip(all).for_each(|(old, new)| *old = new);
        Ok(object)
    }
}

/// The function as `bpf/expression.h` has it.
fn room() -> Vec<u8> {
    let mark = |immediate| Extended { code: 0xb7, immediate, ..NOTHING };
    let offset = i16::try_from(ROOM).unwrap_or(i16::MAX);
    let over = Extended { code: 0x15, immediate: MARKS[0], offset, ..NOTHING };
    let left = std::iter::repeat_n(NOTHING, ROOM);
    let all = [mark(MARKS[0]), over].into_iter().chain(left).chain([mark(MARKS[1]), EXIT]);
    all.flat_map(|one| one.bytes()).collect()
}

#[cfg(test)]
mod tests;
