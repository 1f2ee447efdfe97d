//! What things look like on a terminal.

use ratatui::style::{Color, Modifier, Style};

/// What the terminal can show.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    /// Colours are wanted.
    pub colour: bool,
    /// It shows more than ASCII.
    pub unicode: bool,
}

impl Look {
    fn coloured(self, style: Style, colour: Color) -> Style {
        if self.colour { style.fg(colour) } else { style }
    }

    /// Something that is not well.
    pub fn bad(self) -> Style {
        self.coloured(Style::new().add_modifier(Modifier::BOLD), Color::Red)
    }

    /// A way, or the title of a page.
    pub fn title(self) -> Style {
        self.coloured(Style::new().add_modifier(Modifier::BOLD), Color::Cyan)
    }
}

/// Names of columns, and what explains others.
pub fn faint() -> Style {
    Style::new().add_modifier(Modifier::DIM)
}
