//! `overlane lab guest`: the first process of a guest. It sets the guest up, serves or runs loads
//! on request, or runs this program once, and powers off.

use std::net::Ipv4Addr;

use anyhow::anyhow;
use lab::guest::exec;
use lab::guest::inside::{self, Setup};

use crate::args::Guest;
use crate::exit::{Exit, usage};
use crate::output::complain;

/// Handles requests from the control port until QEMU exits.
///
/// # Errors
/// Fails outside of a guest, because it would mount over the host's directories. Inside, errors go
/// to the console, and the guest powers off.
pub fn run(arguments: &Guest) -> anyhow::Result<Exit> {
    // It powers the machine off at its end, and mounts file systems.
    if !inside::is_inside() {
        return Err(usage("guest", "only a mode may start this, as the first process of a guest"));
    }
    if let Err(error) = serve(arguments) {
        complain(&format!("error: {error:#}"));
    }
    inside::power_off();
    Ok(Exit::Partly)
}

fn serve(arguments: &Guest) -> anyhow::Result<()> {
    let setup = Setup {
        address: arguments.address.as_deref().map(address).transpose()?,
        mtu: arguments.mtu,
        gateway: arguments.gateway,
    };
    let port = inside::prepare(&setup).map_err(|reason| anyhow!(reason))?;
    match arguments.exec {
        true => exec::run(port).map_err(|reason| anyhow!(reason)),
        false => Ok(measure::guest::serve(port, &arguments.name)?),
    }
}

fn address(text: &str) -> anyhow::Result<(Ipv4Addr, u8)> {
    let parsed = text.split_once('/').and_then(|(address, prefix)| {
        let prefix = prefix.parse().ok().filter(|length| *length <= 32)?;
        Some((address.parse().ok()?, prefix))
    });
    parsed.ok_or_else(|| usage("--address", format!("{text:?}: expected ADDR/LENGTH")))
}
