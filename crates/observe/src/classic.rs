//! Classic BPF, as libpcap makes it of an expression, in instructions of eBPF.
//!
//! The function that they make is `expression` of `bpf/expression.h`. Its packet lies in memory
//! of [`ROOM_OF_BYTES`] bytes, from `begin` to `end`. As in classic BPF, whatever is read behind
//! its end makes the answer no. Registers are 32 bits wide, as there.
//!
//! Source: `bpf_filter` of libpcap (`bpf_filter.c`), `include/uapi/linux/bpf.h`, RFC 9669.

use sys::libpcap::Instruction;

/// As `SNAPSHOT_BYTES` of `bpf/event.h`.
const ROOM_OF_BYTES: u32 = 2048;

/// `SKF_AD_OFF`: from here on absolute reads are of what Linux knows about a packet.
const EXTENSIONS: u32 = -0x1000_i32 as u32;

/// An instruction of eBPF.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extended {
    /// What it does.
    pub code: u8,
    /// Register that it writes, or compares.
    pub to: u8,
    /// Register that it reads.
    pub from: u8,
    /// Bytes from a pointer, or instructions to leave out.
    pub offset: i16,
    /// Its constant.
    pub immediate: i32,
}

/// Registers: the classic ones, and arguments of the function.
const A: u8 = 0;
const BYTES: u8 = 1;
const BEGIN: u8 = 2;
const END: u8 = 3;
const LENGTH: u8 = 4;
const X: u8 = 6;
/// For addresses, and what of them is compared.
const AT: u8 = 7;
const BEHIND: u8 = 8;
const STACK: u8 = 10;

/// Of eBPF: classes and sizes of instructions.
const LDX: u8 = 0x01;
const ST: u8 = 0x02;
const STX: u8 = 0x03;
const ALU: u8 = 0x04;
const JMP: u8 = 0x05;
const JMP32: u8 = 0x06;
const ALU64: u8 = 0x07;
const MEM: u8 = 0x60;
const BY_REGISTER: u8 = 0x08;
/// Of both.
const WORD: u8 = 0x00;
const HALF: u8 = 0x08;
const BYTE: u8 = 0x10;

const ADD: u8 = 0x00;
const AND: u8 = 0x50;
const LSH: u8 = 0x60;
const RSH: u8 = 0x70;
const DIV: u8 = 0x30;
const MOD: u8 = 0x90;
const NEG: u8 = 0x80;
const MOV: u8 = 0xb0;
const TO_BIG_ENDIAN: u8 = 0xd8;
const ALWAYS: u8 = 0x00;
const EQUAL: u8 = 0x10;
const GREATER: u8 = 0x20;
const EXIT: u8 = 0x90;

/// Why a program cannot be translated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TranslateError {
    /// An instruction that libpcap does not make.
    #[error("instruction {at} of classic BPF has the code {code:#x}, which is not known")]
    Unknown { at: usize, code: u16 },
    /// It goes back, as libpcap's programs do in its own interpreter only.
    #[error("it needs a loop (protochain does), which cannot be translated")]
    Loop,
    /// It reads an extension of Linux' (`SKF_AD_OFF`), which only sockets have.
    #[error("it asks for something that is not in the packet, as inbound and outbound do")]
    NotInPacket,
    /// It jumps out of itself.
    #[error("instruction {at} of classic BPF leads out of the program")]
    Outside { at: usize },
}

/// Where an instruction leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    /// To an instruction of the classic program.
    At(usize),
    /// To the end: no.
    Reject,
}

struct Translation {
    made: Vec<Extended>,
    /// Jumps among them, and where they lead.
    jumps: Vec<(usize, Target)>,
}

/// Makes the function of a program.
///
/// # Errors
/// What is no program of classic BPF.
pub(crate) fn translate(program: &[Instruction]) -> Result<Vec<Extended>, TranslateError> {
    let reachable = reachable(program)?;
    let mut it = Translation { made: Vec::new(), jumps: Vec::new() };
    // Upper halves of arguments are nobody's.
    for argument in [BEGIN, END, LENGTH] {
        it.put(ALU | MOV | BY_REGISTER, argument, argument, 0, 0);
    }
    it.set(A, 0);
    it.set(X, 0);
    for slot in slots(program) {
        it.put(ST | MEM | WORD, STACK, 0, slot_offset(slot), 0);
    }
    let mut begins = vec![None; program.len()];
    for (at, instruction) in program.iter().enumerate().filter(|(at, _)| reachable[*at]) {
        begins[at] = Some(it.made.len());
        it.instruction(at, instruction)?;
    }
    let rejects = it.made.len();
    if it.jumps.iter().any(|(_, target)| *target == Target::Reject) {
        it.ret(0);
    }
    for (from, target) in it.jumps {
        let to = match target {
            Target::Reject => rejects,
            // What is jumped to can be reached.
            Target::At(at) => begins.get(at).copied().flatten().unwrap_or(rejects),
        };
        // A program of libpcap's size: whoever has no room for it says so.
        it.made[from].offset = i16::try_from(to as i64 - from as i64 - 1).unwrap_or(i16::MAX);
    }
    Ok(it.made)
}

/// Where an instruction leads, at most two.
fn successors(program: &[Instruction], at: usize) -> Vec<usize> {
    let one = &program[at];
    match (one.code & 0x07, one.code & 0xf0) {
        (0x05, 0x00) => vec![at + 1 + one.k as usize],
        (0x05, _) => {
            vec![at + 1 + usize::from(one.when_true), at + 1 + usize::from(one.when_false)]
        }
        (0x06, _) => Vec::new(),
        _ if is_always_no(one) => Vec::new(),
        _ => vec![at + 1],
    }
}

/// Which can be reached: the verifier takes no others. Jumps lead forwards only.
fn reachable(program: &[Instruction]) -> Result<Vec<bool>, TranslateError> {
    let mut reachable = vec![false; program.len()];
    let first = reachable.first_mut().ok_or(TranslateError::Outside { at: 0 })?;
    *first = true;
    for at in 0..program.len() {
        if reachable[at] {
            // BPF_JA's constant is signed then.
            if program[at].code == 0x05 && program[at].k > i32::MAX as u32 {
                return Err(TranslateError::Loop);
            }
            for next in successors(program, at) {
                *reachable.get_mut(next).ok_or(TranslateError::Outside { at })? = true;
            }
        }
    }
    Ok(reachable)
}

/// Bytes that an instruction reads of the packet; `None`: it reads none.
fn read_size(one: &Instruction) -> Option<u32> {
    match (one.code & 0x07, one.code & 0xe0, one.code & 0x18) {
        (0x00, 0x20 | 0x40, 0x00) => Some(4),
        (0x00, 0x20 | 0x40, 0x08) => Some(2),
        (0x00, 0x20 | 0x40, 0x10) | (0x01, 0xa0, _) => Some(1),
        _ => None,
    }
}

/// Whether an instruction reads where no packet of ours has anything, or divides by 0.
fn is_always_no(one: &Instruction) -> bool {
    read_size(one).is_some_and(|size| one.k > ROOM_OF_BYTES - size)
        || (matches!(one.code, 0x34 | 0x94) && one.k == 0)
}

/// Words of memory that a program uses.
fn slots(program: &[Instruction]) -> std::collections::BTreeSet<u32> {
    let is_slot = |one: &&Instruction| {
        matches!(one.code & 0x07, 0x02 | 0x03) || matches!(one.code & 0xe7, 0x60 | 0x61)
    };
    program.iter().filter(is_slot).map(|one| one.k & 15).collect()
}

/// Of a word of memory, on the stack.
fn slot_offset(slot: u32) -> i16 {
    -4 * ((slot & 15) as i16 + 1)
}

impl Translation {
    fn put(&mut self, code: u8, to: u8, from: u8, offset: i16, immediate: i32) {
        self.made.push(Extended { code, to, from, offset, immediate });
    }

    /// A register becomes a constant.
    fn set(&mut self, register: u8, k: u32) {
        self.put(ALU | MOV, register, 0, 0, k as i32);
    }

    fn copy(&mut self, to: u8, from: u8) {
        self.put(ALU | MOV | BY_REGISTER, to, from, 0, 0);
    }

    fn jump(&mut self, code: u8, register: u8, with: u8, immediate: u32, target: Target) {
        self.jumps.push((self.made.len(), target));
        self.put(code, register, with, 0, immediate as i32);
    }

    fn ret(&mut self, answer: u32) {
        self.set(A, answer);
        self.put(JMP | EXIT, 0, 0, 0, 0);
    }

    /// Reads the packet at `k`, behind `X` where it is asked for.
    fn read(&mut self, to: u8, size: u32, is_behind_x: bool, k: u32) {
        let last = ROOM_OF_BYTES - size;
        self.put(ALU64 | MOV | BY_REGISTER, AT, BEGIN, 0, 0);
        self.put(ALU64 | ADD, AT, 0, 0, k as i32);
        if is_behind_x {
            self.put(ALU64 | ADD | BY_REGISTER, AT, X, 0, 0);
        }
        // For the verifier, which knows nothing of the end.
        self.jump(JMP | GREATER, AT, 0, last, Target::Reject);
        self.put(ALU64 | MOV | BY_REGISTER, BEHIND, AT, 0, 0);
        self.put(ALU64 | ADD, BEHIND, 0, 0, size as i32);
        self.jump(JMP | GREATER | BY_REGISTER, BEHIND, END, 0, Target::Reject);
        self.put(ALU64 | ADD | BY_REGISTER, AT, BYTES, 0, 0);
        let width = match size {
            1 => BYTE,
            2 => HALF,
            _ => WORD,
        };
        self.put(LDX | MEM | width, to, AT, 0, 0);
        if size > 1 {
            self.put(ALU | TO_BIG_ENDIAN, to, 0, 0, size as i32 * 8);
        }
    }

    fn instruction(&mut self, at: usize, one: &Instruction) -> Result<(), TranslateError> {
        let unknown = TranslateError::Unknown { at, code: one.code };
        let is_absolute = one.code & 0x07 == 0 && one.code & 0xe0 == 0x20;
        if is_absolute && one.k >= EXTENSIONS {
            return Err(TranslateError::NotInPacket);
        }
        if is_always_no(one) {
            self.jump(JMP | ALWAYS, 0, 0, 0, Target::Reject);
            return Ok(());
        }
        let k = one.k;
        // BPF_CLASS and what is behind it.
        match (one.code & 0x07, one.code & !0x07) {
            // ld, ldx: constants, memory, the packet's length.
            (0x00, 0x00) => self.set(A, k),
            (0x01, 0x00) => self.set(X, k),
            (0x00, 0x60) => self.put(LDX | MEM | WORD, A, STACK, slot_offset(k), 0),
            (0x01, 0x60) => self.put(LDX | MEM | WORD, X, STACK, slot_offset(k), 0),
            (0x00, 0x80) => self.copy(A, LENGTH),
            (0x01, 0x80) => self.copy(X, LENGTH),
            // ldx 4*([k]&0xf).
            (0x01, 0xb0) => {
                self.read(X, 1, false, k);
                self.put(ALU | AND, X, 0, 0, 0xf);
                self.put(ALU | LSH, X, 0, 0, 2);
            }
            (0x00, mode) => match read_size(one) {
                Some(size) => self.read(A, size, mode & 0xe0 == 0x40, k),
                None => return Err(unknown),
            },
            (0x02, 0x00) => self.put(STX | MEM | WORD, STACK, A, slot_offset(k), 0),
            (0x03, 0x00) => self.put(STX | MEM | WORD, STACK, X, slot_offset(k), 0),
            (0x04, operation) => return self.compute(operation as u8, k).ok_or(unknown),
            (0x05, condition) => return self.branch(at, condition as u8, one).ok_or(unknown),
            (0x06, 0x00) => self.ret(u32::from(k > 0)),
            // ret a: whatever is not 0 is yes.
            (0x06, 0x10) => self.put(JMP | EXIT, 0, 0, 0, 0),
            (0x07, 0x00) => self.copy(X, A),
            (0x07, 0x80) => self.copy(A, X),
            _ => return Err(unknown),
        }
        Ok(())
    }

    /// A becomes the result of an operation with a constant, or with X.
    fn compute(&mut self, operation: u8, k: u32) -> Option<()> {
        let is_by_x = operation & BY_REGISTER > 0;
        match operation & 0xf0 {
            NEG => self.put(ALU | NEG, A, 0, 0, 0),
            // Classic BPF answers no where it would divide by 0.
            code @ (DIV | MOD) if is_by_x => {
                self.jump(JMP32 | EQUAL, X, 0, 0, Target::Reject);
                self.put(ALU | code | BY_REGISTER, A, X, 0, 0);
            }
            // By 32 bits and more nothing is left; eBPF would take the rest of a division by 32.
            code @ (LSH | RSH) if is_by_x => {
                self.put(JMP32 | GREATER, X, 0, 2, 31);
                self.put(ALU | code | BY_REGISTER, A, X, 0, 0);
                self.put(JMP | ALWAYS, 0, 0, 1, 0);
                self.set(A, 0);
            }
            LSH | RSH if k > 31 => self.set(A, 0),
            // add, sub, mul, div, or, and, lsh, rsh, mod, xor have the numbers of classic BPF.
            code @ (0x00..=0x70 | 0x90 | 0xa0) => match is_by_x {
                true => self.put(ALU | code | BY_REGISTER, A, X, 0, 0),
                false => self.put(ALU | code, A, 0, 0, k as i32),
            },
            _ => return None,
        }
        Some(())
    }

    fn branch(&mut self, at: usize, condition: u8, one: &Instruction) -> Option<()> {
        let (yes, no) = (usize::from(one.when_true), usize::from(one.when_false));
        match condition & 0xf0 {
            ALWAYS if one.k > 0 => {
                self.jump(JMP | ALWAYS, 0, 0, 0, Target::At(at + 1 + one.k as usize));
            }
            ALWAYS => {}
            // Either way to the same: the verifier would take nothing to be between.
            _ if yes == no => {
                if yes > 0 {
                    self.jump(JMP | ALWAYS, 0, 0, 0, Target::At(at + 1 + yes));
                }
            }
            // jeq, jgt, jge, jset have the numbers of classic BPF.
            code @ 0x10..=0x40 => {
                let (source, register, k) = match condition & BY_REGISTER {
                    0 => (0, 0, one.k),
                    _ => (BY_REGISTER, X, 0),
                };
                self.jump(JMP32 | code | source, A, register, k, Target::At(at + 1 + yes));
                if no > 0 {
                    self.jump(JMP | ALWAYS, 0, 0, 0, Target::At(at + 1 + no));
                }
            }
            _ => return None,
        }
        Some(())
    }
}
