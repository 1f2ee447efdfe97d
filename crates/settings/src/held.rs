//! Changes that this process takes back itself, when told to or at its end: those of
//! namespaces that end with it, and those of the machine that a guard process keeps.
//!
//! The journal is for hosts that outlive the process. A test host's namespace is held by
//! its makers' descriptors alone: what was changed in it is gone with a killed process.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sys::guard::{Guard, GuardError};
use sys::netns::NetNs;

use crate::apply::{self, Error};
use crate::change::{Change, Setting, same};

/// How long another process may have the machine's settings.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two attempts to get them.
const AGAIN: Duration = Duration::from_millis(20);

/// Changes in effect, in the order in which they were made; dropping it takes them back,
/// as [`restore`](Held::restore) does.
#[derive(Debug, Default)]
pub struct Held {
    made: Vec<Made>,
}

#[derive(Debug)]
enum Made {
    InNamespace(Arc<NetNs>, Box<Change>),
    OfMachine(Guard),
}

impl Held {
    /// Makes a change in a namespace that ends with this process. The change is of the
    /// namespace's own ([`Change::place`] without a path). One that is so already is not
    /// made: an earlier one has brought it along, as features do.
    ///
    /// # Errors
    /// As [`apply::write()`]; [`Error::Changed`], [`Error::OneWay`], [`Error::NotTaken`].
    pub fn make(&mut self, netns: &Arc<NetNs>, change: Change) -> Result<(), Error> {
        let made = netns.run(|| {
            if apply::read(&change)?.is(&change.to) {
                return Ok(None);
            }
            apply::check(&change)?;
            Ok::<_, Error>(Some(apply::make(&change, Path::new("/"))))
        })??;
        let Some(result) = made else { return Ok(()) };
        match result {
            Ok(()) => {
                self.made.push(Made::InNamespace(Arc::clone(netns), Box::new(change)));
                Ok(())
            }
            Err(error) => {
                // Whatever the kernel made of it; the first error says more.
                let _ = netns.run(|| apply::write(&change, &change.from));
                Err(error)
            }
        }
    }

    /// Writes a sysctl of the machine, by its path below `/proc/sys`. A process of its own
    /// gives the earlier value back even if this one is killed. Where another run has a
    /// setting of the machine, it is waited for.
    ///
    /// # Errors
    /// As the file's; [`GuardError::Busy`] when the other run has it for more than a minute;
    /// [`Error::NotTaken`].
    pub fn make_of_machine(&mut self, path: &str, value: &str) -> Result<(), Error> {
        let file = PathBuf::from(format!("/proc/sys/{path}"));
        let begun = Instant::now();
        let guard = loop {
            match Guard::change(&file, value) {
                Err(GuardError::Busy) if begun.elapsed() < PATIENCE => {
                    std::thread::sleep(AGAIN);
                }
                answer => break answer?,
            }
        };
        let got = netstate::proc::read_value(&file)?;
        // Neither the earlier value nor the one asked for: the kernel has made something else
        // of it.
        if !same(&got, value) {
            guard.restore()?;
            let setting = Setting::Sysctl { path: path.to_owned(), device: None };
            let (from, to) = (String::new(), value.to_owned());
            let object = Change { place: None, setting, from, to }.object();
            return Err(Error::NotTaken { object, wanted: value.to_owned(), got });
        }
        self.made.push(Made::OfMachine(guard));
        Ok(())
    }

    /// Takes all of it back, the last change first, also where one fails.
    ///
    /// # Errors
    /// The first that failed.
    pub fn restore(mut self) -> Result<(), Error> {
        self.take_back()
    }

    fn take_back(&mut self) -> Result<(), Error> {
        let mut first = Ok(());
        while let Some(made) = self.made.pop() {
            let done = match made {
                Made::InNamespace(netns, change) => netns
                    .run(|| apply::put_back(&change).map(drop))
                    .unwrap_or_else(|error| Err(error.into())),
                Made::OfMachine(guard) => guard.restore().map_err(Error::from),
            };
            first = first.and(done);
        }
        first
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Whoever wants to know calls restore.
        let _ = self.take_back();
    }
}
