package gpuyard

import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Test
import java.math.BigDecimal

class DecimalTextTest {
    @Test
    fun `every amount of thousandths up to a thousand devices keeps its decimal form as a float`() {
        for (thousandths in 1L..999_999L) {
            val exact = BigDecimal.valueOf(thousandths, 3)
            assertEquals(0, exact.compareTo(BigDecimal(decimalText(exact.toFloat()))), "$exact")
        }
    }

    @Test
    fun `large and small floats are written without an exponent and what is no number as it is`() {
        assertEquals("10000000", BigDecimal(decimalText(1e7f)).stripTrailingZeros().toPlainString())
        assertEquals("0.0001", BigDecimal(decimalText(1e-4f)).stripTrailingZeros().toPlainString())
        assertEquals(listOf("NaN", "Infinity", "-Infinity"), listOf(Float.NaN, Float.POSITIVE_INFINITY, Float.NEGATIVE_INFINITY).map(::decimalText))
    }
}
