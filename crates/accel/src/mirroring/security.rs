//! Security modules that may decide on packets of the fast path.

use netstate::kernel_symbols::{self, Symbol};

use crate::Result;
use crate::model::{Labelling, SelinuxReason};
use crate::programs::{LabellingReader, Symbols};

/// Modules that check only sockets, files and processes. AppArmor passes packets without a socket.
const HARMLESS: [&str; 13] = [
    "capability",
    "tomoyo",
    "apparmor",
    "yama",
    "loadpin",
    "safesetid",
    "lockdown",
    "bpf",
    "landlock",
    "ima",
    "evm",
    "ipe",
    "integrity",
];
const SELINUX: &str = "selinux";

/// The kernel's variables for [`Symbols`], each with a function of the same part of the kernel. A
/// kernel without that part has neither.
const SECMARK: &str = "selinux_secmark_refcount";
const STATE: &str = "selinux_state";
const NETLABEL: [&str; 2] = ["netlabel_mgmt_protocount", "netlbl_enabled"];
const IPSEC: [&str; 2] = ["selinux_xfrm_refcount", "selinux_xfrm_policy_alloc"];

/// The active security modules, and access to SELinux's state. The list of modules does not change
/// while a kernel runs.
#[derive(Debug)]
pub struct Security {
    /// Modules other than SELinux that inspect packets by functions at netfilter hooks, or why they
    /// are unknown.
    modules: Vec<String>,
    selinux: Selinux,
}

#[derive(Debug)]
enum Selinux {
    /// Not active.
    Off,
    Known(LabellingReader),
    /// Its state cannot be read.
    Unknown(String),
}

impl Security {
    /// Reads the list of modules and, for SELinux, the addresses of the kernel's variables. A
    /// process that drops `CAP_SYSLOG` calls this before, because the kernel may then hide them.
    pub fn open() -> Security {
        let active = match sys::lsm::active() {
            Ok(active) => active,
            // An unknown module may inspect packets, so refuse.
            Err(error) => {
                return Security {
                    modules: vec![format!("unknown: {error}")],
                    selinux: Selinux::Off,
                };
            }
        };
        let selinux = if active.iter().any(|name| name == SELINUX) {
            match load() {
                Ok(reader) => Selinux::Known(reader),
                Err(problem) => Selinux::Unknown(problem),
            }
        } else {
            Selinux::Off
        };
        Security { modules: foreign(active), selinux }
    }

    /// Modules other than SELinux that inspect packets.
    pub(crate) fn modules(&self) -> &[String] {
        &self.modules
    }

    /// Why SELinux may decide on packets now.
    pub(crate) fn selinux(&self) -> Option<SelinuxReason> {
        match &self.selinux {
            Selinux::Off => None,
            Selinux::Known(reader) => reason(reader.read()),
            Selinux::Unknown(problem) => Some(SelinuxReason::Unknown(problem.clone())),
        }
    }
}

/// Returns the modules that inspect packets, except SELinux.
fn foreign(active: Vec<String>) -> Vec<String> {
    let is_known = |name: &str| name == SELINUX || HARMLESS.contains(&name);
    active.into_iter().filter(|name| !is_known(name)).collect()
}

fn reason(read: Result<Labelling>) -> Option<SelinuxReason> {
    match read {
        Ok(labelling) => labelling.checks(),
        Err(error) => Some(SelinuxReason::Unknown(error.to_string())),
    }
}

fn load() -> std::result::Result<LabellingReader, String> {
    let names = [SECMARK, STATE, NETLABEL[0], NETLABEL[1], IPSEC[0], IPSEC[1]];
    let found = kernel_symbols::read(names).map_err(|error| error.to_string())?;
    LabellingReader::load(&symbols(found)?).map_err(|error| error.to_string())
}

fn symbols(
    [secmark, state, netlabel, netlabel_function, ipsec, ipsec_function]: [Symbol; 6],
) -> std::result::Result<Symbols, String> {
    Ok(Symbols {
        secmark: address(SECMARK, secmark)?,
        state: address(STATE, state)?,
        netlabel: address_if_built(NETLABEL[0], netlabel, netlabel_function)?,
        ipsec: address_if_built(IPSEC[0], ipsec, ipsec_function)?,
    })
}

fn address(name: &str, symbol: Symbol) -> std::result::Result<u64, String> {
    match symbol {
        Symbol::At(address) => Ok(address.get()),
        Symbol::Hidden => {
            Err("/proc/kallsyms has no addresses without CAP_SYSLOG (kernel.kptr_restrict)".into())
        }
        Symbol::Missing => Err(format!("/proc/kallsyms has no {name} (CONFIG_KALLSYMS_ALL)")),
        Symbol::Ambiguous => Err(format!("/proc/kallsyms has several {name}")),
    }
}

/// Returns `None` if the kernel was built without the variable and its function.
fn address_if_built(
    name: &str,
    symbol: Symbol,
    function: Symbol,
) -> std::result::Result<Option<u64>, String> {
    match (symbol, function) {
        (Symbol::Missing, Symbol::Missing) => Ok(None),
        _ => address(name, symbol).map(Some),
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;

    fn at(address: u64) -> Symbol {
        Symbol::At(NonZeroU64::new(address).unwrap())
    }

    /// As in Debian's and Fedora's kernels.
    fn all() -> [Symbol; 6] {
        [at(8), at(16), at(24), at(32), at(40), at(48)]
    }

    #[test]
    fn selinux_and_harmless_modules_are_no_module_to_refuse() {
        let of = |names: &[&str]| foreign(names.iter().map(|name| (*name).to_owned()).collect());
        assert!(of(&["capability", "selinux", "bpf", "landlock", "apparmor"]).is_empty());
        assert_eq!(of(&["smack", "selinux", "number 120"]), ["smack", "number 120"]);
    }

    #[test]
    fn variables_are_found_or_their_part_of_the_kernel_is_not_built() {
        let whole = Symbols { secmark: 8, state: 16, netlabel: Some(24), ipsec: Some(40) };
        assert_eq!(symbols(all()), Ok(whole));
        let mut few = all();
        (few[4], few[5]) = (Symbol::Missing, Symbol::Missing);
        assert_eq!(symbols(few), Ok(Symbols { ipsec: None, ..whole }));
    }

    #[test]
    fn a_variable_that_is_missing_or_hidden_is_named() {
        for (place, symbol, expected) in [
            (0, Symbol::Missing, "no selinux_secmark_refcount (CONFIG_KALLSYMS_ALL)"),
            (1, Symbol::Hidden, "without CAP_SYSLOG (kernel.kptr_restrict)"),
            // The function is there, so the variable has another name in this kernel.
            (2, Symbol::Missing, "no netlabel_mgmt_protocount"),
            (4, Symbol::Missing, "no selinux_xfrm_refcount"),
            (4, Symbol::Ambiguous, "several selinux_xfrm_refcount"),
        ] {
            let mut found = all();
            found[place] = symbol;
            let problem = symbols(found).unwrap_err();
            assert!(problem.contains(expected), "{problem}");
        }
    }

    #[test]
    fn a_state_that_cannot_be_read_is_a_reason() {
        let refused = crate::Error::Bpf {
            operation: "read",
            object: "SELinux's variables".into(),
            problem: "flags 0x4 of 0xc".into(),
        };
        let reason = reason(Err(refused)).unwrap();
        assert!(matches!(&reason, SelinuxReason::Unknown(why) if why.contains("0x4 of 0xc")));
        let security = Security {
            modules: Vec::new(),
            selinux: Selinux::Unknown("/proc/kallsyms: EACCES".into()),
        };
        assert_eq!(security.selinux().unwrap().to_string(), "/proc/kallsyms: EACCES");
    }

    #[test]
    fn without_selinux_there_is_nothing_to_read() {
        let security = Security { modules: Vec::new(), selinux: Selinux::Off };
        assert_eq!(security.selinux(), None);
    }
}
