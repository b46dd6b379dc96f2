//! Putting numbers or other Dims in the place of symbols.

use std::collections::BTreeSet;

use crate::dim::{Atom, Extreme, Product, SumBuilder, Term, extreme, saturate};
use crate::dim_divide::{divide, divide_numbers};
use crate::{Bindings, Dim, Symbol};

impl Dim {
    /// This size with the bound symbols replaced; a number once all of its symbols are bound.
    pub fn bind(&self, bindings: &Bindings) -> Dim {
        match self.eval(bindings) {
            Some(value) => Dim::from(value),
            None => self.substitute(&|symbol| bindings.get(symbol).map(Dim::from)),
        }
    }

    /// The number this size has under the bindings, or none where a symbol is not bound. Saturates at i64.
    pub fn eval(&self, bindings: &Bindings) -> Option<i64> {
        let mut sum = i128::from(self.constant());
        for Term { product, coefficient } in self.terms() {
            let mut value = i128::from(*coefficient);
            for atom in &product.0 {
                value = value.saturating_mul(i128::from(eval_atom(atom, bindings)?));
            }
            sum = sum.saturating_add(value);
        }
        Some(saturate(sum))
    }

    /// This size with each symbol replaced by what `replace` gives for it; none keeps the symbol.
    pub fn substitute(&self, replace: &dyn Fn(&Symbol) -> Option<Dim>) -> Dim {
        self.map_atoms(&|atom| match atom {
            Atom::Symbol(symbol) => replace(symbol).unwrap_or_else(|| Dim::atom(atom.clone())),
            Atom::Divide(division, dividend, divisor) => {
                let (dividend, divisor) = (dividend.substitute(replace), divisor.substitute(replace));
                match (dividend.as_const(), divisor.as_const()) {
                    (Some(dividend), Some(divisor)) => Dim::from(divide_numbers(*division, dividend, divisor)),
                    (_, Some(0)) => Dim::ZERO,
                    _ => divide(*division, &dividend, &divisor),
                }
            }
            Atom::Extreme(kind, arguments) => {
                let arguments: Vec<Dim> = arguments.iter().map(|argument| argument.substitute(replace)).collect();
                extreme(*kind, &arguments)
            }
            Atom::Unexpanded(left, right) => left.substitute(replace) * right.substitute(replace),
        })
    }

    /// The symbols this size depends on.
    pub fn symbols(&self) -> BTreeSet<Symbol> {
        let mut symbols = BTreeSet::new();
        self.collect_symbols(&mut symbols);
        symbols
    }

    fn collect_symbols(&self, symbols: &mut BTreeSet<Symbol>) {
        for atom in self.terms().iter().flat_map(|term| &term.product.0) {
            match atom {
                Atom::Symbol(symbol) => {
                    symbols.insert(symbol.clone());
                }
                Atom::Divide(_, left, right) | Atom::Unexpanded(left, right) => {
                    left.collect_symbols(symbols);
                    right.collect_symbols(symbols);
                }
                Atom::Extreme(_, arguments) => {
                    arguments.iter().for_each(|argument| argument.collect_symbols(symbols));
                }
            }
        }
    }

    /// The sum rebuilt with every atom replaced.
    pub(crate) fn map_atoms(&self, map: &dyn Fn(&Atom) -> Dim) -> Dim {
        let mut builder = SumBuilder::default();
        for Term { product, coefficient } in self.terms() {
            builder.add_scaled(&map_product(product, map), *coefficient);
        }
        builder.add_constant(self.constant());
        builder.finish()
    }
}

fn map_product(product: &Product, map: &dyn Fn(&Atom) -> Dim) -> Dim {
    product.0.iter().map(map).product()
}

fn eval_atom(atom: &Atom, bindings: &Bindings) -> Option<i64> {
    match atom {
        Atom::Symbol(symbol) => bindings.get(symbol),
        Atom::Divide(division, dividend, divisor) => {
            Some(divide_numbers(*division, dividend.eval(bindings)?, divisor.eval(bindings)?))
        }
        Atom::Extreme(kind, arguments) => {
            let mut values = Vec::with_capacity(arguments.len());
            for argument in arguments {
                values.push(argument.eval(bindings)?);
            }
            match kind {
                Extreme::Min => values.into_iter().min(),
                Extreme::Max => values.into_iter().max(),
            }
        }
        Atom::Unexpanded(left, right) => Some(left.eval(bindings)?.saturating_mul(right.eval(bindings)?)),
    }
}
