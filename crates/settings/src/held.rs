//! Changes that this process undoes itself, on request or at its end: changes in namespaces that
//! end with it, and changes of the machine that a guard process undoes.
//!
//! The journal is for hosts that outlive the process. A test host's namespace exists only through
//! its creator's descriptors, so if the process is killed, its changes are gone, too.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sys::guard::{Guard, GuardError};
use sys::netns::NetNs;

use crate::apply::{self, Error};
use crate::change::{Change, Setting, same};

/// Longest wait for another process that changed the machine's settings.
const PATIENCE: Duration = Duration::from_secs(60);
/// Interval between attempts.
const AGAIN: Duration = Duration::from_millis(20);

/// Changes in effect, in the order in which they were made. Dropping it undoes them, like
/// [`restore`](Held::restore).
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
    /// Makes a change in a namespace that ends with this process. [`Change::place`] must have no
    /// path. If the setting already has the value, nothing is done: an earlier change may have
    /// included it, as features do.
    ///
    /// # Errors
    /// As [`apply::write()`]; [`Error::Changed`], [`Error::OneWay`], [`Error::NotTaken`].
    pub fn make(&mut self, netns: &Arc<NetNs>, change: Change) -> Result<(), Error> {
        let made = netns.run(|| {
            // The setting has the wanted value already: there is nothing to restore.
            if apply::read(&change)?.is(&change.to) {
                return Ok(None);
            }
            apply::check(&change)?;
            Ok::<_, Error>(Some(apply::make(&change, Path::new("/"))))
        })??;
        // Nothing was changed, so nothing must be undone.
        let Some(result) = made else { return Ok(()) };
        match result {
            Ok(()) => {
                self.made.push(Made::InNamespace(Arc::clone(netns), Box::new(change)));
                Ok(())
            }
            Err(error) => {
                // Restore the value in any case. The first error says more than a second one.
                let _ = netns.run(|| apply::write(&change, &change.from));
                Err(error)
            }
        }
    }

    /// Writes a sysctl of the machine, by its path below `/proc/sys`. A guard process restores the
    /// earlier value even if this one is killed. Waits while another run has changed a setting of
    /// the machine.
    ///
    /// # Errors
    /// Errors of the file; [`GuardError::Busy`] if the other run keeps it for more than a minute;
    /// [`Error::NotTaken`].
    pub fn make_of_machine(&mut self, path: &str, value: &str) -> Result<(), Error> {
        let file = PathBuf::from(format!("/proc/sys/{path}"));
        let begun = Instant::now();
        let guard = loop {
            match Guard::change(&file, value) {
                // Another run has changed a setting of the machine: wait for its end.
                Err(GuardError::Busy) if begun.elapsed() < PATIENCE => {
                    std::thread::sleep(AGAIN);
                }
                answer => break answer?,
            }
        };
        let got = netstate::proc::read_value(&file)?;
        // The kernel stored neither the earlier value nor the requested one.
        if !same(&got, value) {
            guard.restore()?;
            let setting = Setting::Sysctl { path: path.to_owned(), device: None };
            // The kernel kept another value: a measurement would be of that one.
            let (from, to) = (String::new(), value.to_owned());
            let object = Change { place: None, setting, from, to }.object();
            return Err(Error::NotTaken { object, wanted: value.to_owned(), got });
        }
        self.made.push(Made::OfMachine(guard));
        Ok(())
    }

    /// Undoes all changes in reverse order, continuing after a failure.
    ///
    /// # Errors
    /// The first failure.
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
        // Callers that need the error call restore.
        let _ = self.take_back();
    }
}
