"""Alarms with nothing behind them: who repairs something fails."""
