//! Addresses of the kernel's own symbols: `/proc/kallsyms`.
//!
//! Source: `s_show()`, `kallsyms_show_value()` (`kernel/kallsyms.c`).

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::num::NonZeroU64;

/// The list of symbols.
const LIST: &str = "/proc/kallsyms";

/// A symbol of the kernel. Symbols of modules do not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Symbol {
    /// Its address.
    At(NonZeroU64),
    /// The kernel hides addresses from this process: `kernel.kptr_restrict`, no `CAP_SYSLOG`.
    Hidden,
    /// The list does not contain it. Variables are listed only with `CONFIG_KALLSYMS_ALL`.
    Missing,
    /// Several symbols have this name.
    Ambiguous,
}

/// Reads the addresses of these symbols.
///
/// # Errors
/// If the list cannot be read.
pub fn read<const N: usize>(names: [&str; N]) -> sys::Result<[Symbol; N]> {
    let failed = |operation| move |e: std::io::Error| sys::Error::io(operation, LIST, &e);
    let list = File::open(LIST).map_err(failed("open"))?;
    find(BufReader::new(list), names).map_err(failed("read"))
}

/// Finds these symbols in a list.
fn find<const N: usize>(mut list: impl BufRead, names: [&str; N]) -> std::io::Result<[Symbol; N]> {
    let mut found = [Symbol::Missing; N];
    let mut line = Vec::new();
    while list.read_until(b'\n', &mut line)? > 0 {
        if let Some((name, symbol)) = parse(&line) {
            for (known, wanted) in found.iter_mut().zip(names) {
                if wanted.as_bytes() == name {
                    *known = if *known == Symbol::Missing { symbol } else { Symbol::Ambiguous };
                }
            }
        }
        line.clear();
    }
    Ok(found)
}

/// Parses `ADDRESS TYPE NAME`. `None` for a symbol of a module, which has a fourth word.
fn parse(line: &[u8]) -> Option<(&[u8], Symbol)> {
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let (address, _, name) = (words.next()?, words.next()?, words.next()?);
    // The symbol is a module's.
    if words.next().is_some() {
        return None;
    }
    let address = std::str::from_utf8(address).ok();
    let address = address.and_then(|word| u64::from_str_radix(word, 16).ok());
    Some((name, address.and_then(NonZeroU64::new).map_or(Symbol::Hidden, Symbol::At)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Linux 6.12, shortened.
    const GOLDEN: &str = "\
0000000000000000 A fixed_percpu_data
ffffffff90a94ee0 t selinux_ip_output
ffffffff92c2d5a8 b selinux_secmark_refcount
ffffffff92c2d5c0 B selinux_state
ffffffff90000001 t twice
ffffffff90000002 t twice
ffffffffc0a01000 t nft_secmark_obj_init\t[nf_tables]
";

    fn at(address: u64) -> Symbol {
        Symbol::At(NonZeroU64::new(address).unwrap())
    }

    #[test]
    fn symbols_of_the_kernel_are_found_by_their_whole_name() {
        let names = ["selinux_state", "selinux_secmark_refcount", "selinux", "refcount"];
        let expected = [
            at(0xffff_ffff_92c2_d5c0),
            at(0xffff_ffff_92c2_d5a8),
            Symbol::Missing,
            Symbol::Missing,
        ];
        assert_eq!(find(GOLDEN.as_bytes(), names).unwrap(), expected);
    }

    #[test]
    fn hidden_ambiguous_and_module_symbols_have_no_address() {
        let names = ["fixed_percpu_data", "twice", "nft_secmark_obj_init"];
        let expected = [Symbol::Hidden, Symbol::Ambiguous, Symbol::Missing];
        assert_eq!(find(GOLDEN.as_bytes(), names).unwrap(), expected);
        let hidden = GOLDEN.replace("ffffffff92c2d5c0", "0000000000000000");
        assert_eq!(find(hidden.as_bytes(), ["selinux_state"]).unwrap(), [Symbol::Hidden]);
        let odd = "x b selinux_state";
        assert_eq!(find(odd.as_bytes(), ["selinux_state"]).unwrap(), [Symbol::Hidden]);
    }

    #[test]
    fn this_kernel_lists_its_functions() {
        // Without CONFIG_KALLSYMS there is no list.
        if let Ok([function, none]) = read(["schedule", "no such symbol"]) {
            assert_ne!(function, Symbol::Missing);
            assert_eq!(none, Symbol::Missing);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_to_their_end(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            find(&bytes[..], ["selinux_state", "a"]).unwrap();
        }

        #[test]
        fn an_address_is_that_of_its_line(
            addresses in prop::collection::vec(any::<u64>(), 1..20),
            place in any::<prop::sample::Index>(),
        ) {
            let line = |(at, address)| format!("{address:016x} t symbol_{at}\n");
            let text: String = addresses.iter().enumerate().map(line).collect();
            let place = place.index(addresses.len());
            let wanted = format!("symbol_{place}");
            let expected = NonZeroU64::new(addresses[place]).map_or(Symbol::Hidden, Symbol::At);
            prop_assert_eq!(find(text.as_bytes(), [wanted.as_str()]).unwrap(), [expected]);
        }
    }
}
