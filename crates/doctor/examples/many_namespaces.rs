//! Measures how long `overlane doctor` takes on a host with many namespaces, each joined to one
//! bridge by a veth pair: `many_namespaces [NAMESPACES] [OVERLANE]`, as root.
//!
//! It times the whole program without `--watch`, and checks that no line of its output exceeds 80
//! columns. The namespaces belong to this process and end with it.

use std::process::Command;
use std::time::Instant;

use testbed::Host;

const MTU: u32 = 1500;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let count: usize = arguments.next().map_or(Ok(1000), |text| text.parse())?;
    let program = arguments.next().unwrap_or_else(|| "target/release/overlane".to_owned());
    sys::limit::raise_descriptors();
    let time = |what: &str| -> Result<(), Box<dyn std::error::Error>> {
        let begun = Instant::now();
        let output = Command::new(&program)
            .args(["doctor", "--watch", "0", "--fail-on", "never"])
            .output()?;
        let seconds = begun.elapsed().as_secs_f64();
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into());
        }
        let text = String::from_utf8(output.stdout)?;
        let widest = text.lines().map(|line| line.chars().count()).max().unwrap_or(0);
        println!("{what}: {seconds:.2} s, {} lines, widest {widest}", text.lines().count());
        Ok(())
    };
    time("this machine as it is")?;
    let hub = Host::new("hub")?;
    hub.bridge("br0", MTU, &[])?;
    let mut tenants = Vec::new();
    for number in 0..count {
        let tenant = Host::new(&format!("tenant-{number}"))?;
        let port = format!("veth{number}");
        hub.connect(&port, &tenant, "eth0", MTU)?;
        hub.netlink().set_master(&port, "br0")?;
        hub.netlink().set_up(&port)?;
        tenant.netlink().set_up("eth0")?;
        let [.., high, low] = (number as u32 + 1).to_be_bytes();
        tenant.address("eth0", std::net::Ipv4Addr::new(10, 200, high, low), 16)?;
        tenants.push(tenant);
    }
    for _ in 0..3 {
        time(&format!("and {count} namespaces"))?;
    }
    Ok(())
}
