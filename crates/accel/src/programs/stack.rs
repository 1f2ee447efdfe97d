//! The stack of the programs, as the strictest kernel counts it. This one may permit more.

use std::collections::BTreeSet;

use libbpf_rs::libbpf_sys::bpf_insn;
use test_support::{need, require};

use super::object::{DecapGso, Programs};

/// `MAX_BPF_STACK`.
const MOST: usize = 512;
/// Before Linux 6.9 each frame is rounded up to this size (`check_max_stack_depth_subprog`).
const STEP: usize = 32;
/// The register with the address of the frame.
const FRAME: u8 = 10;
// Instruction classes and operations (include/uapi/linux/bpf_common.h, bpf.h).
const CLASS: u8 = 7;
const LDX: u8 = 1;
const ST: u8 = 2;
const STX: u8 = 3;
const CALL: u8 = 0x85;
const LOAD_ADDRESS: u8 = 0x18;
const MOVE: u8 = 0xbf;
const ADD_NUMBER: u8 = 0x07;
/// `BPF_PSEUDO_CALL`, `BPF_PSEUDO_FUNC`.
const TO_FUNCTION: u8 = 1;
const OF_FUNCTION: u8 = 4;

/// Returns the function that an instruction calls, or passes as a callback.
fn called(at: usize, insn: &bpf_insn) -> Option<usize> {
    let kind = (insn.code, insn.src_reg());
    let is_function = kind == (CALL, TO_FUNCTION) || kind == (LOAD_ADDRESS, OF_FUNCTION);
    is_function.then(|| (at as i64 + i64::from(insn.imm) + 1) as usize)
}

/// Returns the size of the frame of a function, and the functions that it calls.
fn frame(code: &[bpf_insn], start: usize, end: usize) -> (usize, BTreeSet<usize>) {
    let (mut size, mut calls, mut addresses) = (1, BTreeSet::new(), BTreeSet::new());
    for (at, insn) in code.iter().enumerate().take(end).skip(start) {
        calls.extend(called(at, insn));
        let offset = match insn.code & CLASS {
            LDX if insn.src_reg() == FRAME => insn.off.into(),
            ST | STX if insn.dst_reg() == FRAME => insn.off.into(),
            // An address in the frame.
            _ if insn.code == MOVE && insn.src_reg() == FRAME => {
                addresses.insert(insn.dst_reg());
                0
            }
            _ if insn.code == ADD_NUMBER && addresses.remove(&insn.dst_reg()) => insn.imm,
            _ => 0,
        };
        size = size.max(usize::try_from(-offset).unwrap_or(0));
    }
    (size.next_multiple_of(STEP), calls)
}

/// Returns the stack of a function with those that it calls.
fn stack(code: &[bpf_insn], starts: &BTreeSet<usize>, start: usize) -> usize {
    let end = starts.range(start + 1..).next().copied().unwrap_or(code.len());
    let (size, calls) = frame(code, start, end);
    size + calls.iter().map(|called| stack(code, starts, *called)).max().unwrap_or(0)
}

#[test]
fn the_stack_of_each_program_fits_on_every_supported_kernel() {
    require!(need::root());
    let programs = Programs::load(16, 16, DecapGso::default()).unwrap();
    for program in programs.object.progs() {
        let code = program.insns();
        let called = code.iter().enumerate().filter_map(|(at, insn)| called(at, insn));
        let starts: BTreeSet<usize> = called.chain([0]).collect();
        let size = stack(code, &starts, 0);
        assert!(size <= MOST, "{:?}: {size} bytes", program.name());
    }
}
