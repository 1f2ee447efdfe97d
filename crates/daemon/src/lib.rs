//! Parts of programs that run until a signal.
//!
//! - [`control`], [`serving`]: control sockets, and the thread that answers requests.
//! - [`accelerator`], [`endpoint`], [`watch_metrics`]: the services of `accel run`, `vtep` and
//!   `watch`.
//! - [`metrics`]: pages for Prometheus over HTTP.
//! - [`takeover`]: a new process replaces a running one without a gap.
//! - [`confinement`]: rights that a program gives up after its setup.
//! - [`background`], [`notify`], [`signals`]: start in the background, the service manager, signals.

#![forbid(unsafe_code)]

pub mod accelerator;
pub mod background;
pub mod confinement;
pub mod control;
pub mod endpoint;
pub mod metrics;
pub mod notify;
pub mod serving;
pub mod signals;
pub mod takeover;
pub mod watch_metrics;
