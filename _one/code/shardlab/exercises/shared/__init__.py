"""What several exercises share: inputs, attempts and judges."""
