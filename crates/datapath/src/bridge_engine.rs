//! Names of the engines that move the frames of a bridge.

use std::fmt;
use std::str::FromStr;

/// How frames are moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Engine {
    /// tc redirects frames in the kernel. Threads move the frames that cannot be redirected.
    Bpf,
    /// A thread per queue that reads, writes, and sleeps in `epoll_wait`.
    Epoll,
    /// A thread per queue that reads batches by io_uring (Linux 6.7).
    Uring,
}

impl Engine {
    /// Every engine, the best one first.
    pub const ALL: [Engine; 3] = [Engine::Bpf, Engine::Epoll, Engine::Uring];

    /// Returns the name used on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Engine::Bpf => "bpf",
            Engine::Epoll => "epoll",
            Engine::Uring => "uring",
        }
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An engine, or the best one that runs here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum EngineChoice {
    /// The first one of [`Engine::ALL`] that runs.
    #[default]
    Auto,
    Only(Engine),
}

impl FromStr for EngineChoice {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<EngineChoice, String> {
        if text == "auto" {
            return Ok(EngineChoice::Auto);
        }
        let engine = Engine::ALL.into_iter().find(|engine| engine.name() == text);
        engine.map(EngineChoice::Only).ok_or_else(|| {
            let names = Engine::ALL.map(Engine::name).join(", ");
            format!("unknown engine {text:?}; known: auto, {names}")
        })
    }
}

/// An engine cannot run here.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{engine}: {reason}")]
pub struct Unavailable {
    pub engine: Engine,
    /// The feature that the kernel lacks or refuses.
    pub reason: String,
}
