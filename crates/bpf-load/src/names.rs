//! Names of the running kernel: drop reasons and functions.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use libbpf_rs::btf::Btf;
use libbpf_rs::btf::types::Enum;

/// The name of a drop reason on a kernel that does not report reasons.
pub const NOT_TOLD: &str = "NOT_TOLD";

/// Reasons for dropping a packet, by number. The default is for a kernel that does not report
/// reasons.
#[derive(Debug, Clone, Default)]
pub struct DropReasons(BTreeMap<u32, String>);

impl DropReasons {
    /// Returns the kernel's name of a reason without its prefix (`SOCKET_RCVBUFF`).
    pub fn name(&self, reason: u32) -> String {
        if self.0.is_empty() {
            return NOT_TOLD.to_owned();
        }
        // Numbers above 16 bits belong to a subsystem (enum skb_drop_reason_subsys).
        self.0.get(&reason).cloned().unwrap_or_else(|| format!("reason {reason:#x}"))
    }
}

/// Returns the running kernel's names of its drop reasons.
///
/// # Errors
/// If the kernel has none: before Linux 5.17.
pub fn drop_reasons(btf: &Btf<'_>) -> Result<DropReasons, String> {
    let names = btf
        .type_by_name::<Enum<'_>>("skb_drop_reason")
        .ok_or("the kernel has no enum skb_drop_reason (requires Linux 5.17)")?;
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

/// Reads the symbols of the kernel if they have not been read. They stay in memory. Otherwise
/// [`functions`] would read them, possibly at a time when something else is urgent.
pub fn know_functions() {
    own();
}

/// The symbols of the kernel itself, which do not change. Symbols of modules come and go.
fn own() -> &'static Symbols {
    static OWN: OnceLock<Symbols> = OnceLock::new();
    OWN.get_or_init(|| Symbols::parse(&kallsyms(), |module| !module))
}

fn kallsyms() -> String {
    // If it cannot be read, no function names are reported.
    let bytes = std::fs::read("/proc/kallsyms").unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Returns the functions that contain the addresses; `None` if the kernel hides them
/// (`kernel.kptr_restrict`).
pub fn functions(addresses: &[u64]) -> BTreeMap<u64, Option<String>> {
    named(own(), addresses, || Symbols::parse(&kallsyms(), |_| true))
}

/// Uses the kernel's own symbols for addresses among them, and `all` for the others.
fn named(
    own: &Symbols,
    addresses: &[u64],
    all: impl FnOnce() -> Symbols,
) -> BTreeMap<u64, Option<String>> {
    let (within, others): (Vec<u64>, Vec<u64>) =
        addresses.iter().copied().partition(|address| own.is_around(*address));
    let mut found: BTreeMap<u64, Option<String>> =
        within.into_iter().map(|address| (address, own.at(address))).collect();
    if !others.is_empty() {
        let all = all();
        found.extend(others.into_iter().map(|address| (address, all.at(address))));
    }
    found
}

/// Functions by address.
#[derive(Debug, Default)]
struct Symbols {
    /// The names, one after the other.
    names: String,
    /// Address, and start of the name in `names`; sorted.
    begins: Vec<(u64, u32)>,
}

impl Symbols {
    /// Parses lines as in `/proc/kallsyms`: address, type, name, module in brackets. `is_wanted`
    /// gets true for a symbol of a module, and false for one of the kernel.
    fn parse(text: &str, is_wanted: impl Fn(bool) -> bool) -> Symbols {
        let mut symbols = Symbols::default();
        for line in text.lines() {
            let mut words = line.split_ascii_whitespace();
            let (Some(address), Some("t" | "T" | "w" | "W"), Some(name)) =
                (words.next(), words.next(), words.next())
            else {
                continue;
            };
            // Addresses are all 0 if they are hidden.
            let Some(address) = u64::from_str_radix(address, 16).ok().filter(|a| *a > 0) else {
                continue;
            };
            let begin = u32::try_from(symbols.names.len());
            if let Ok(begin) = begin
                && is_wanted(words.next().is_some())
            {
                symbols.begins.push((address, begin));
                symbols.names.push_str(name.split('.').next().unwrap_or(name));
                symbols.names.push('\n');
            }
        }
        // If an address has several names, the first is used.
        symbols.begins.sort_by_key(|(address, _)| *address);
        symbols.begins.dedup_by_key(|(address, _)| *address);
        symbols
    }

    fn is_around(&self, address: u64) -> bool {
        let ends = self.begins.first().zip(self.begins.last());
        ends.is_some_and(|(first, last)| first.0 < address && address <= last.0)
    }

    /// Returns the function that contains the call before a return address. The return address is
    /// after the call, so it is never the start of that function.
    fn at(&self, address: u64) -> Option<String> {
        let behind = self.begins.partition_point(|(begin, _)| *begin < address);
        let (_, begin) = self.begins.get(behind.checked_sub(1)?)?;
        self.names[*begin as usize..].lines().next().map(str::to_owned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "ffffffff81000000 T first\nffffffff81000100 t second.isra.0\n\
                        ffffffff81000100 t another_name\nffffffff81000180 d data\n\
                        ffffffff81000200 T third\ngarbage\n\
                        ffffffffc0000000 t of_module\t[module]\n";

    #[test]
    fn an_address_lies_in_the_nearest_function_below_it() {
        let symbols = Symbols::parse(TEXT, |module| !module);
        assert_eq!(symbols.at(0xffff_ffff_8100_01ff).as_deref(), Some("second"));
        // The call was the last instruction of the preceding function.
        assert_eq!(symbols.at(0xffff_ffff_8100_0100).as_deref(), Some("first"));
        assert_eq!(symbols.at(0xffff_ffff_8100_0000), None);
        assert_eq!(symbols.at(1), None);
        let hidden = Symbols::parse("0000000000000000 T first\n", |_| true);
        assert_eq!(hidden.at(0xffff_ffff_8100_01ff), None);
        assert!(!hidden.is_around(0xffff_ffff_8100_01ff));
    }

    #[test]
    fn functions_of_modules_are_looked_for_anew() {
        let own = Symbols::parse(TEXT, |module| !module);
        let (inside, outside) = (0xffff_ffff_8100_0042, 0xffff_ffff_c000_0042);
        let found = named(&own, &[inside], || panic!("what is known is not read again"));
        assert_eq!(found[&inside].as_deref(), Some("first"));
        let found = named(&own, &[inside, outside], || Symbols::parse(TEXT, |_| true));
        assert_eq!(found[&inside].as_deref(), Some("first"));
        assert_eq!(found[&outside].as_deref(), Some("of_module"));
    }
}
