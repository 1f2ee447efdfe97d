//! Sets up the terminal, and restores it on every exit.

use std::io::{BufWriter, Stdout, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use ratatui::layout::Rect;
use ratatui::{Frame, Terminal as Ratatui};

use crate::output;

/// Whether the terminal is set up. Ensures that it is restored once, also on a panic of any thread.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// The terminal in raw mode, on its alternate screen.
pub struct Terminal {
    // Buffered, so that a frame is one write, for example over ssh.
    terminal: Ratatui<CrosstermBackend<BufWriter<Stdout>>>,
}

impl Terminal {
    /// Sets up the terminal. Log lines are deferred until it is restored.
    ///
    /// # Errors
    /// If its settings cannot be changed. They then stay as they were.
    pub fn take() -> anyhow::Result<Terminal> {
        enable_raw_mode().context("put the terminal into raw mode")?;
        // From here on, every error restores the terminal.
        TAKEN.store(true, Ordering::SeqCst);
        output::hold_log();
        let earlier = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            // Restore first, so that the panic message is on the normal screen.
            give_back();
            earlier(panic);
        }));
        let taken = execute!(std::io::stdout(), EnterAlternateScreen, Hide);
        let terminal = taken.and_then(|()| {
            Ratatui::new(CrosstermBackend::new(BufWriter::with_capacity(
                1 << 16,
                std::io::stdout(),
            )))
        });
        match terminal {
            Ok(terminal) => Ok(Terminal { terminal }),
            Err(error) => {
                give_back();
                Err(error).context("write to the terminal")
            }
        }
    }

    /// Draws a frame in the current size of the terminal.
    pub fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> anyhow::Result<()> {
        // After a panic of another thread, the terminal has been restored: do not draw.
        if TAKEN.load(Ordering::SeqCst) {
            self.terminal.draw(draw).context("write to the terminal")?;
        }
        Ok(())
    }

    /// Forces a complete redraw, because the content of the terminal is unknown.
    pub fn forget(&mut self) -> anyhow::Result<()> {
        // Not `clear`, which queries the cursor position and waits for the answer.
        let size = self.terminal.size().context("get the size of the terminal")?;
        self.terminal.resize(Rect::from(((0, 0).into(), size))).context("write to the terminal")
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        give_back();
    }
}

fn give_back() {
    if TAKEN.swap(false, Ordering::SeqCst) {
        // Ignore errors: a closed terminal needs no restoring.
        let _ = execute!(std::io::stdout(), LeaveAlternateScreen, Show);
        let _ = disable_raw_mode();
        let _ = std::io::stdout().flush();
        output::release_log();
    }
}
