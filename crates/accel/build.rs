//! Compiles the programs in `bpf/`, and generates layout assertions for the Rust side of
//! `bpf/abi.h`.

use std::error::Error;
use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use libbpf_rs::btf::types::{Composite, Enum, MemberAttr};
use libbpf_rs::btf::{Btf, BtfKind, BtfType, HasSize, TypeId};

/// The header, and the object whose BTF describes its declarations.
const HEADER: &str = "bpf/abi.h";
const OBJECT: &str = "abi.bpf.o";

fn main() -> ExitCode {
    let compiled = bpf_build::compile();
    if compiled != ExitCode::SUCCESS {
        return compiled;
    }
    match layouts() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("cargo::error=layouts of {HEADER}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Writes `abi_layout.rs`: an assertion per struct, and the values of the enums.
fn layouts() -> Result<(), Box<dyn Error>> {
    let out = std::env::var("OUT_DIR")?;
    let btf = Btf::from_path(Path::new(&out).join(OBJECT))?;
    let header = std::fs::read_to_string(HEADER)?;
    let mut text = String::new();
    for line in header.lines() {
        // Fail on other declarations: their layout would not be asserted.
        match line.strip_suffix(" {").map(|line| line.split(' ').collect::<Vec<_>>()).as_deref() {
            Some(["struct", name]) => structure(&mut text, &btf, name)?,
            Some(["enum", name]) => enumeration(&mut text, &btf, name)?,
            Some(other) if !line.starts_with(char::is_whitespace) => {
                return Err(
                    format!("expected \"struct NAME\" or \"enum NAME\", got {other:?}").into()
                );
            }
            _ => {}
        }
    }
    Ok(std::fs::write(Path::new(&out).join("abi_layout.rs"), text)?)
}

/// Finds a type of one of these kinds by name.
fn find<'a>(btf: &'a Btf<'_>, name: &str, kinds: &[BtfKind]) -> Result<BtfType<'a>, String> {
    let is = |at: &BtfType<'a>| {
        kinds.contains(&at.kind()) && at.name().is_some_and(|known| known == name)
    };
    let mut all = (1..btf.len() as u32).filter_map(|id| btf.type_by_id(TypeId::from(id)));
    all.find(is).ok_or_else(|| format!("{name}: not in the BTF: describe it in bpf/abi.bpf.c"))
}

fn structure(text: &mut String, btf: &Btf<'_>, name: &str) -> Result<(), Box<dyn Error>> {
    let found = find(btf, name, &[BtfKind::Struct])?;
    let found = Composite::try_from(found).map_err(|_| format!("{name}: not composite"))?;
    writeln!(text, "layout!({}, {}, {{", raw(name), found.size())?;
    for member in found.iter() {
        let field = member.name.ok_or_else(|| format!("{name}: a field without a name"))?;
        let MemberAttr::Normal { offset } = member.attr else {
            return Err(format!("{name}.{}: a bit field", field.to_string_lossy()).into());
        };
        writeln!(text, "    {}: {},", field.to_string_lossy(), offset / 8)?;
    }
    writeln!(text, "}});")?;
    Ok(())
}

fn enumeration(text: &mut String, btf: &Btf<'_>, name: &str) -> Result<(), Box<dyn Error>> {
    let found = find(btf, name, &[BtfKind::Enum])?;
    let found = Enum::try_from(found).map_err(|_| format!("{name}: no enumeration"))?;
    let mut names = Vec::new();
    for (place, value) in found.iter().enumerate() {
        let word = value.name.ok_or_else(|| format!("{name}: a value without a name"))?;
        let (word, value) = (word.to_string_lossy().into_owned(), value.value);
        if name == "reason" {
            if value != place as i64 {
                return Err(format!("{name}: {word} is {value}, expected {place}").into());
            }
        } else {
            writeln!(text, "/// Of `enum {name}`.")?;
            // Only the programs use some values.
            writeln!(text, "#[allow(dead_code)]")?;
            writeln!(text, "pub(crate) const {word}: u32 = {value};")?;
        }
        names.push(word);
    }
    if name == "reason" {
        // The last enumerator is their number.
        let last = names.pop();
        let names: Vec<String> = names.iter().map(|word| word.to_lowercase()).collect();
        if last.as_deref() != Some("REASONS") {
            return Err(format!("{name}: the last is {last:?}, expected REASONS").into());
        }
        writeln!(text, "/// Names of `enum reason` in small letters, by value.")?;
        writeln!(text, "pub(crate) const REASONS: &[&str] = &{names:?};")?;
    }
    Ok(())
}

/// Converts `struct mac_key` to `RawMacKey`.
fn raw(name: &str) -> String {
    let capital = |word: &str| word[..1].to_uppercase() + &word[1..];
    format!("Raw{}", name.split('_').map(capital).collect::<String>())
}
