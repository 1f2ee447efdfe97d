//! Reads the variables by which SELinux tells whether to check packets (`bpf/labelling.bpf.c`).
//!
//! No file or netlink family reports two of them: the number of rules that label packets
//! (SECMARK), and of labelled IPsec policies and states, both of the whole machine. NetLabel's
//! families answer in the initial network namespace only.

use std::ffi::OsStr;
use std::os::fd::AsFd;

use libbpf_rs::{Object, ObjectBuilder};
use zerocopy::IntoBytes;

use super::abi::{
    self, LABELLING_ALWAYS, LABELLING_IPSEC, LABELLING_NETLABEL, LABELLING_PEER_CONTROLS,
    LABELLING_POLICY, LABELLING_SECMARK, RawLabelling, RawSymbols,
};
use super::object::{failed, quiet};
use crate::Result;
use crate::model::Labelling;

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/labelling.bpf.o"));
const PROGRAM: &str = "labelling";

/// Addresses of variables in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Symbols {
    /// `selinux_secmark_refcount`.
    pub(crate) secmark: u64,
    /// `netlabel_mgmt_protocount`, if the kernel has NetLabel.
    pub(crate) netlabel: Option<u64>,
    /// `selinux_xfrm_refcount`, if the kernel has labelled IPsec.
    pub(crate) ipsec: Option<u64>,
    /// `selinux_state`.
    pub(crate) state: u64,
}

/// The loaded program.
pub(crate) struct LabellingReader {
    object: Object,
    /// Flags of the variables that must be read.
    required: u32,
}

impl std::fmt::Debug for LabellingReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LabellingReader")
    }
}

impl LabellingReader {
    pub(crate) fn load(symbols: &Symbols) -> Result<LabellingReader> {
        const OF: &str = "BPF program labelling";
        quiet();
        let raw = RawSymbols {
            secmark: symbols.secmark,
            netlabel: symbols.netlabel.unwrap_or(0),
            ipsec: symbols.ipsec.unwrap_or(0),
            state: symbols.state,
        };
        let mut object = ObjectBuilder::default()
            .open_memory(OBJECT)
            .map_err(|e| failed("open", OF, e.to_string()))?;
        for mut map in object.maps_mut() {
            if map.name().to_string_lossy().ends_with(".rodata") {
                map.set_initial_value(&abi::bytes(&raw))
                    .map_err(|e| failed("set up", OF, e.to_string()))?;
            }
        }
        let object = object.load().map_err(|e| failed("load", OF, e.to_string()))?;
        Ok(LabellingReader { object, required: required(symbols) })
    }

    /// Reads the variables.
    pub(crate) fn read(&self) -> Result<Labelling> {
        let raw = self.run()?;
        labelling(&raw, self.required).ok_or_else(|| {
            let problem = format!("flags {:#x} of {:#x}", raw.flags, self.required);
            failed("read", "SELinux's variables", problem)
        })
    }

    fn run(&self) -> Result<RawLabelling> {
        let found = self.object.progs().find(|program| program.name() == OsStr::new(PROGRAM));
        let program = found.ok_or_else(|| failed("find", "program labelling", "none".into()))?;
        let mut raw = RawLabelling::default();
        sys::bpf_run::run(program.as_fd(), raw.as_mut_bytes())?;
        Ok(raw)
    }
}

/// Returns the flags that tell that the kernel's variables were read.
fn required(symbols: &Symbols) -> u32 {
    LABELLING_POLICY
        | LABELLING_SECMARK
        | abi::flag(symbols.netlabel.is_some(), LABELLING_NETLABEL)
        | abi::flag(symbols.ipsec.is_some(), LABELLING_IPSEC)
}

/// Decodes an answer. `None`: a required variable could not be read.
fn labelling(raw: &RawLabelling, required: u32) -> Option<Labelling> {
    (raw.flags & required == required).then_some(Labelling {
        peer_controls: raw.flags & LABELLING_PEER_CONTROLS != 0,
        always_checked: raw.flags & LABELLING_ALWAYS != 0,
        secmark: raw.secmark,
        netlabel: raw.netlabel,
        ipsec: raw.ipsec,
    })
}

#[cfg(test)]
mod tests {
    use netstate::kernel_symbols::{self, Symbol};
    use test_support::{need, require};

    use super::*;

    const ALL: Symbols = Symbols { secmark: 8, netlabel: Some(16), ipsec: Some(24), state: 32 };

    #[test]
    fn an_answer_counts_only_if_every_variable_was_read() {
        let all = LABELLING_POLICY | LABELLING_SECMARK | LABELLING_NETLABEL | LABELLING_IPSEC;
        assert_eq!(required(&ALL), all);
        let raw = |flags| RawLabelling { flags, secmark: 1, netlabel: 2, ipsec: 3 };
        let read = labelling(&raw(all | LABELLING_PEER_CONTROLS), all).unwrap();
        let expected = Labelling {
            peer_controls: true,
            always_checked: false,
            secmark: 1,
            netlabel: 2,
            ipsec: 3,
        };
        assert_eq!(read, expected);
        for lacking in [LABELLING_POLICY, LABELLING_SECMARK, LABELLING_NETLABEL, LABELLING_IPSEC] {
            let flags = all & !lacking | LABELLING_PEER_CONTROLS;
            assert_eq!(labelling(&raw(flags), all), None, "{lacking:#x}");
        }
        let without = Symbols { netlabel: None, ipsec: None, ..ALL };
        let few = LABELLING_POLICY | LABELLING_SECMARK;
        assert!(labelling(&raw(few), required(&without)).is_some());
    }

    /// The code of a function, because a kernel without `CONFIG_KALLSYMS_ALL` lists no variables.
    #[test]
    fn memory_of_the_kernel_is_read_where_there_is_some() {
        require!(need::root());
        let [function] = require!(kernel_symbols::read(["schedule"]));
        let Symbol::At(function) = function else { panic!("{function:?}") };
        let symbols = Symbols {
            secmark: function.get(),
            netlabel: Some(function.get()),
            ipsec: Some(8),
            state: 8,
        };
        let reader = LabellingReader::load(&symbols).unwrap();
        let raw = reader.run().unwrap();
        assert_eq!(raw.flags, LABELLING_SECMARK | LABELLING_NETLABEL);
        assert_ne!(raw.secmark, 0);
        assert_eq!((raw.netlabel, raw.ipsec), (raw.secmark, 0));
        let error = reader.read().unwrap_err().to_string();
        assert!(error.contains("SELinux's variables: flags 0x18 of 0x3c"), "{error}");
    }
}
