//! The terminal: taken, and given back as it was, however this ends.

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

/// Whether the terminal is ours: a panic of any thread gives it back, too, once.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// The terminal in raw mode, on its alternate screen.
pub struct Terminal {
    // Buffered: through ssh a frame is one write.
    terminal: Ratatui<CrosstermBackend<BufWriter<Stdout>>>,
}

impl Terminal {
    /// Takes it. What is logged meanwhile is written when it is given back.
    ///
    /// # Errors
    /// When its settings cannot be changed; they are as they were.
    pub fn take() -> anyhow::Result<Terminal> {
        enable_raw_mode().context("put the terminal into raw mode")?;
        // From here on, what goes wrong gives it back.
        TAKEN.store(true, Ordering::SeqCst);
        output::hold_log();
        let earlier = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            // First, so that the message is on the screen that stays.
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

    /// Draws a frame, of the size that the terminal has now.
    ///
    /// # Errors
    /// When the terminal cannot be written to.
    pub fn draw(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> anyhow::Result<()> {
        // After a panic of another thread it is not ours any more.
        if TAKEN.load(Ordering::SeqCst) {
            self.terminal.draw(draw).context("write to the terminal")?;
        }
        Ok(())
    }

    /// Draws the next frame as a whole: what the terminal shows is not known.
    ///
    /// # Errors
    /// As [`Terminal::draw`].
    pub fn forget(&mut self) -> anyhow::Result<()> {
        // Not `clear`, which asks the terminal where its cursor is, and waits for the answer.
        let size = self.terminal.size().context("ask for the terminal's size")?;
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
        // A terminal that is gone needs nothing.
        let _ = execute!(std::io::stdout(), LeaveAlternateScreen, Show);
        let _ = disable_raw_mode();
        let _ = std::io::stdout().flush();
        output::release_log();
    }
}
