//! Names of the running kernel: of its reasons, and of its functions.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};

use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::Enum;

/// What a drop's reason is called on a kernel that tells none.
pub const NOT_TOLD: &str = "NOT_TOLD";

/// Reasons for dropping a packet, by number. The default is a kernel that tells none.
#[derive(Debug, Clone, Default)]
pub struct DropReasons(BTreeMap<u32, String>);

impl DropReasons {
    /// The kernel's name, without its prefix (`SOCKET_RCVBUFF`).
    pub fn name(&self, reason: u32) -> String {
        if self.0.is_empty() {
            return NOT_TOLD.to_owned();
        }
        // Above 16 bits: a subsystem's own (enum skb_drop_reason_subsys).
        self.0.get(&reason).cloned().unwrap_or_else(|| format!("reason {reason:#x}"))
    }
}

/// The running kernel's names of its reasons for dropping a packet.
///
/// # Errors
/// A kernel that has none: before Linux 5.17.
pub fn drop_reasons(btf: &Btf<'_>) -> Result<DropReasons, String> {
    let names = btf
        .type_by_name::<Enum<'_>>("skb_drop_reason")
        .ok_or("the kernel has no enum skb_drop_reason (Linux 5.17 or newer has)")?;
    let by_number = names
        .iter()
        .filter_map(|member| {
            let name = member.name?.to_string_lossy().into_owned();
            let short = name.strip_prefix("SKB_DROP_REASON_").or_else(|| name.strip_prefix("SKB_"));
            let short = short.unwrap_or(&name).to_owned();
            // Reasons are small and positive.
            Some((u32::try_from(member.value).ok()?, short))
        })
        .collect();
    Ok(DropReasons(by_number))
}

/// The functions that the addresses lie in; `None` for those that the kernel
/// does not tell (`kernel.kptr_restrict`).
pub fn functions(addresses: &[u64]) -> BTreeMap<u64, Option<String>> {
    match std::fs::File::open("/proc/kallsyms") {
        Ok(file) => nearest(BufReader::new(file), addresses),
        Err(_) => addresses.iter().map(|address| (*address, None)).collect(),
    }
}

/// The symbol of code at or right below each address, of lines as in
/// `/proc/kallsyms` (address, type, name).
fn nearest(symbols: impl BufRead, addresses: &[u64]) -> BTreeMap<u64, Option<String>> {
    let mut best: BTreeMap<u64, (u64, Option<String>)> =
        addresses.iter().map(|address| (*address, (0, None))).collect();
    for line in symbols.lines().map_while(Result::ok) {
        let mut words = line.split_ascii_whitespace();
        let (Some(address), Some("t" | "T" | "w" | "W"), Some(name)) =
            (words.next(), words.next(), words.next())
        else {
            continue;
        };
        // All 0 where addresses are hidden.
        let Some(address) = u64::from_str_radix(address, 16).ok().filter(|address| *address > 0)
        else {
            continue;
        };
        // A return address lies behind the call, so never at the very beginning.
        for (_, (nearest, function)) in best.range_mut(address + 1..) {
            if address > *nearest {
                *nearest = address;
                *function = Some(name.split('.').next().unwrap_or(name).to_owned());
            }
        }
    }
    best.into_iter().map(|(address, (_, function))| (address, function)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_lies_in_the_nearest_function_below_it() {
        let symbols = "ffffffff81000000 T first\nffffffff81000100 t second.isra.0\n\
                       ffffffff81000180 d data\nffffffff81000200 T third\ngarbage\n";
        let addresses = [0xffff_ffff_8100_01ff, 0xffff_ffff_8100_0100, 1];
        let found = nearest(symbols.as_bytes(), &addresses);
        assert_eq!(found[&addresses[0]].as_deref(), Some("second"));
        // The call was the last instruction of the function before.
        assert_eq!(found[&addresses[1]].as_deref(), Some("first"));
        assert_eq!(found[&1], None);
        let hidden = "0000000000000000 T first\n";
        assert_eq!(nearest(hidden.as_bytes(), &addresses[..1])[&addresses[0]], None);
    }
}
