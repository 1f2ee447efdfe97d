//! Measures the cost of `trace`'s attachment points with empty programs, as root:
//!
//! - `empty_programs calls` prints the cost of a call, and the time to attach and to detach, by
//!   trace point and by function. A kernel, or its lockdown, may refuse functions.
//! - `empty_programs hold trace-points|functions` attaches all of one kind, prints a message, and
//!   holds them until it is killed. `bench/watch --empty` runs a load at the same time.

use std::ffi::OsStr;
use std::time::{Duration, Instant};

use libbpf_rs::btf::types::Func;
use libbpf_rs::{Link, Object};
use observe::call_cost;

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/empty.bpf.o"));

/// The kinds of attachment points, the prefix of their programs' names, and the program at the end
/// of a peek.
const KINDS: [(&str, &str, &str); 2] = [
    ("trace-points", "tp_btf_at_", "tp_btf_at_skb_copy_datagram_iovec"),
    ("functions", "fentry_at_", "fentry_at_skb_copy_datagram_iter"),
];

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// Loads the programs of one kind whose attachment points exist in this kernel.
fn load(prefix: &str) -> Outcome<(Object, Vec<String>)> {
    let (mut object, btf) = bpf_load::open(OBJECT)?;
    let mut left_out = Vec::new();
    for mut program in object.progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        let is_there = match name.strip_prefix("fentry_at_") {
            Some(function) => btf.type_by_name::<Func<'_>>(function).is_some(),
            None => true,
        };
        let is_meant = name.starts_with(prefix);
        program.set_autoload(is_meant && is_there);
        if is_meant && !is_there {
            left_out.push(name);
        }
    }
    Ok((bpf_load::load(object)?, left_out))
}

fn attach(object: &mut Object, prefix: &str, left_out: &[String]) -> Outcome<Vec<Link>> {
    let mut links = Vec::new();
    for program in object.progs_mut() {
        let name = program.name().to_string_lossy().into_owned();
        if name.starts_with(prefix) && !left_out.contains(&name) {
            links.push(program.attach().map_err(|error| format!("attaching {name}: {error}"))?);
        }
    }
    Ok(links)
}

fn calls() -> Outcome<()> {
    for (kind, prefix, at_peek) in KINDS {
        let (mut object, left_out) = match load(prefix) {
            Ok(loaded) => loaded,
            // For example if programs at functions are not allowed: the other kind can still be
            // measured.
            Err(reason) => {
                println!("{kind}: not measured: {reason}");
                continue;
            }
        };
        let program = object.progs_mut().find(|program| program.name() == OsStr::new(at_peek));
        let program = program.ok_or_else(|| format!("no program {at_peek} in the object"))?;
        let mut costs = Vec::new();
        for _ in 0..5 {
            costs.push(call_cost(|| program.attach())?.as_nanos());
        }
        costs.sort_unstable();
        let (least, middle, most) = (costs[0], costs[2], costs[4]);
        let begun = Instant::now();
        let links = attach(&mut object, prefix, &left_out)?;
        let (attached, count) = (begun.elapsed(), links.len());
        let begun = Instant::now();
        drop(links);
        let (took, detached) = (|time: Duration| time.as_secs_f64() * 1e3, begun.elapsed());
        let (attached, detached) = (took(attached), took(detached));
        println!(
            "{kind}: {middle} ns a call ({least}-{most}, 5 times), {count} attached in \
             {attached:.1} ms, detached in {detached:.1} ms"
        );
        for name in left_out {
            println!("{kind}: left out: {name}: the kernel has no such function");
        }
    }
    Ok(())
}

fn hold(wanted: &str) -> Outcome<()> {
    let (_, prefix, _) = KINDS
        .into_iter()
        .find(|(kind, ..)| *kind == wanted)
        .ok_or_else(|| format!("{wanted:?}: expected trace-points or functions"))?;
    let (mut object, left_out) = load(prefix)?;
    let links = attach(&mut object, prefix, &left_out)?;
    eprintln!("{} empty programs attached to {wanted}", links.len());
    loop {
        std::thread::park();
    }
}

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["calls"] => calls(),
        ["hold", kind] => hold(kind),
        _ => Err("usage: empty_programs calls | hold trace-points|functions".into()),
    }
}
