//! netstate
